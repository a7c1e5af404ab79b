#include "equitile/model/vae/vae_memory.h"

#include <algorithm>
#include <vector>

#include "equitile/model/vae/vae_decoder.h"

namespace equitile {
namespace {

constexpr int64_t kFloat = sizeof(float);
// As conv3d.cc cuts calls into blocks of tiles.
constexpr int64_t kBlockTiles = 96, kFewTiles = 12, kBlocksPerThread = 8;

struct Level {
  int64_t windows = 0;    // stays between frames
  int64_t computing = 0;  // only while the level computes
  int64_t waiting = 0;    // frames for the next level, while that one computes
  bool is_lent = false;   // `computing` goes back to the system when another level computes
};

class Prediction {
 public:
  Prediction(const VaeConfig& config, int64_t height, int64_t width, int32_t ranks, int threads)
      : config_(config), height_(height), width_(width), threads_(threads) {
    const auto levels = static_cast<int64_t>(config.UpBlocks().size());
    const int64_t parts = levels < 2 ? 1 : std::min<int64_t>(ranks, height);
    rows_ = CeilDiv(height, parts);
  }

  VaeMemory Run() {
    AddLevels();
    AddWeights();
    VaeMemory memory = {.weights = kept_ + packing_};
    int64_t waiting = 0, always = 0, most = 0;
    for (const Level& level : levels_) {
      memory.windows += level.windows;
      if (!level.is_lent) always += level.computing;
      most = std::max(most, waiting + (level.is_lent ? level.computing : 0));
      waiting += level.waiting;
    }
    most = std::max(most, waiting);
    const int64_t scale = config_.SpatialScale();
    memory.computing = always + most + scratch_ + height_ * width_ * scale * scale * 3 * kFloat;
    return memory;
  }

 private:
  VaePlane Plane(size_t level, int64_t channels, bool rim) const {
    return {.height = (level == 0 ? height_ : rows_) << level,
            .width = width_ << level,
            .channels = channels,
            .rim = rim};
  }

  void AddLevels() {
    const std::vector<VaeUpBlockShape> blocks = config_.UpBlocks();
    int64_t frames = 1;  // that go through a level together
    for (size_t b = 0; b < blocks.size(); ++b) {
      const VaeUpBlockShape& block = blocks[b];
      const int64_t in = Plane(b, block.in, true).Bytes(), out = Plane(b, block.out, true).Bytes();
      Level& level = levels_.emplace_back();
      level.is_lent = block.in >= kVaeLentChannels;
      level.windows = 2 * (in + (2 * config_.res_blocks + 1) * out);
      // The residual, and the new frames of two neighbouring windows.
      level.computing = frames * Plane(b, block.in, false).Bytes() + 2 * frames * out;
      if (block.in != block.out) {
        level.computing += frames * (in + Plane(b, block.out, false).Bytes());
      }
      if (block.upsample_time) level.windows += 2 * out;
      if (block.upsample) level.waiting = (block.upsample_time ? 2 : 1) * frames * out;
      if (b == 0) AddMid(level);
      if (!block.upsample) {
        const int64_t part = Plane(b, 3 * config_.out_channels, true).Bytes();
        level.windows += 2 * part, level.computing += frames * part;
      }
      AddScratch(b, std::max(block.in, block.out), frames);
      if (b + 1 == blocks.size()) break;
      frames = std::min(frames * (block.upsample_time ? 2 : 1),
                        VaeGroupFrames(Plane(b + 1, blocks[b + 1].out, true)));
    }
  }

  void AddMid(Level& level) const {
    const int64_t mid = config_.MidChannels();
    level.windows += 2 * Plane(0, config_.z_dim, true).Bytes() + 8 * Plane(0, mid, true).Bytes();
    // Residual, normed, q, k, v, attended; packed copies of q, k, v.
    level.computing += 9 * Plane(0, mid, false).Bytes();
  }

  void AddScratch(size_t level, int64_t channels, int64_t frames) {
    const VaePlane plane = Plane(level, channels, false);
    const int64_t tiles = CeilDiv(plane.height, 2) * CeilDiv(plane.width, 2);
    const int64_t even = RoundUp(CeilDiv(tiles, kBlocksPerThread * threads_), kFewTiles);
    const int64_t per_block =
        std::clamp(even, kFewTiles, std::max(kBlockTiles / frames, kFewTiles));
    const int64_t floats = 16 * per_block * (2 * frames + 2) * plane.Pixel();
    scratch_ = std::max(scratch_, threads_ * floats * kFloat);
  }

  void AddConv(const Shape& weights, ConvForm form) {
    const int64_t packed = PackedConv::PackedBytes(weights, form);
    if (packed <= kVaeKeptBytes) {
      kept_ += packed;
    } else {
      packing_ = std::max(packing_, packed + weights.Elements() * kFloat);
    }
  }

  void AddResnet(int64_t in, int64_t out) {
    AddConv({out, in, 3, 3, 3}, ConvForm::kWinograd);
    AddConv({out, out, 3, 3, 3}, ConvForm::kWinograd);
    if (in != out) AddConv({out, in, 1, 1, 1}, ConvForm::kDirect);
  }

  void AddWeights() {
    const int64_t mid = config_.MidChannels();
    AddConv({mid, config_.z_dim, 3, 3, 3}, ConvForm::kWinograd);
    for (int i = 0; i < 4; ++i) AddConv({mid, mid, 1, 1, 1}, ConvForm::kDirect);
    for (int i = 0; i < 2; ++i) AddResnet(mid, mid);
    for (const VaeUpBlockShape& block : config_.UpBlocks()) {
      for (int64_t r = 0; r <= config_.res_blocks; ++r) {
        AddResnet(r == 0 ? block.in : block.out, block.out);
      }
      if (block.upsample_time) {
        for (int i = 0; i < 2; ++i) AddConv({block.out, block.out, 3, 1, 1}, ConvForm::kDirect);
      }
      if (block.upsample) AddConv({block.out / 2, block.out, 1, 3, 3}, ConvForm::kUpsampled);
    }
  }

  const VaeConfig& config_;
  const int64_t height_, width_;
  const int threads_;
  int64_t rows_ = 0;  // of latents, on the rank with most
  std::vector<Level> levels_;
  int64_t kept_ = 0, packing_ = 0, scratch_ = 0;
};

}  // namespace

VaeMemory PredictVaeMemory(const VaeConfig& config, const VaeClipShape& clip, int32_t ranks,
                           int threads) {
  const int64_t scale = config.SpatialScale();
  if (!clip.tiling || clip.tiling->OneTile(clip.latent_height, clip.latent_width, scale)) {
    return Prediction(config, clip.latent_height, clip.latent_width, ranks, threads).Run();
  }
  const int64_t tile = clip.tiling->tile / scale;
  const int64_t height = std::min(clip.latent_height, tile);
  const int64_t width = std::min(clip.latent_width, tile);
  VaeMemory memory = Prediction(config, height, width, 1, threads).Run();
  const int64_t pixel = config.Frames(clip.latent_frames) * scale * scale * 3 * kFloat;
  const int64_t columns = CeilDiv(clip.latent_width * scale, clip.tiling->stride);
  // The video, and two rows of tiles with their overlaps.
  memory.clips = pixel * (clip.latent_height * clip.latent_width + 2 * columns * height * width);
  return memory;
}

}  // namespace equitile
