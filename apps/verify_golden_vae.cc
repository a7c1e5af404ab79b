// Golden decodings, and their stages where the file has them.
#include <map>

#include "apps/verify_golden.h"
#include "equitile/io/safetensors.h"
#include "equitile/model/vae_decoder.h"

namespace equitile {
namespace {

constexpr GoldenTolerance kStages{.max = 3e-5};
constexpr double kLevelsShare = 0.001;

// [frames][height][width][channels] as [channels, frames, height, width].
std::vector<float> ChannelsFirst(const std::vector<float>& pixels, int64_t channels) {
  const auto c_count = static_cast<size_t>(channels);
  std::vector<float> out(pixels.size());
  const size_t count = c_count == 0 ? 0 : pixels.size() / c_count;
  for (size_t p = 0; p < count; ++p) {
    for (size_t c = 0; c < c_count; ++c) out[c * count + p] = pixels[p * c_count + c];
  }
  return out;
}

struct Clip {
  std::vector<float> frames;  // [F][H][W][3]
  // Per latent frame and stage: [frames][H][W][channels].
  std::vector<std::map<std::string, std::vector<float>>> stages;
};

Clip Decode(const VaeWeights& weights, const Tensor& latents, Communicator& comm,
            ThreadPool& pool) {
  Clip clip;
  VaeDecoder decoder(weights, latents.shape()[2], latents.shape()[3], pool, &comm);
  const auto sink = [&](int64_t, std::span<const float> rgb) {
    clip.frames.insert(clip.frames.end(), rgb.begin(), rgb.end());
  };
  const auto tap = [&](const VaeStage& stage) {
    std::vector<float>& to = clip.stages.back()[std::string(stage.name)];
    for (int64_t y = 0; y < stage.plane.height; ++y) {
      for (int64_t x = 0; x < stage.plane.width; ++x) {
        const float* p = stage.pixels + y * stage.plane.RowStride() + x * stage.plane.Pixel();
        to.insert(to.end(), p, p + stage.plane.channels);
      }
    }
  };
  for (int64_t f = 0; f < latents.shape()[1]; ++f) {
    clip.stages.emplace_back();
    // On several ranks each would see its own rows of a stage only.
    decoder.Push(latents.view().Select(1, f), sink, comm.size() == 1 ? VaeTap(tap) : VaeTap());
  }
  return clip;
}

// The stage's frames of latent frames first, first + 1, ... together.
std::vector<float> StageFrames(const Clip& clip, const std::string& stage, size_t first,
                               size_t count) {
  std::vector<float> frames;
  for (size_t i = first; i < std::min(first + count, clip.stages.size()); ++i) {
    const auto found = clip.stages[i].find(stage);
    if (found == clip.stages[i].end()) return {};
    frames.insert(frames.end(), found->second.begin(), found->second.end());
  }
  return frames;
}

class VaeCheck {
 public:
  VaeCheck(const std::string& name, const TensorFiles& file, GoldenReport& report)
      : name_(name), file_(file), report_(report) {}

  void Compare(const std::string& prefix, const Clip& clip, bool with_stages) {
    for (const StoredTensor& tensor : file_.tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      const std::string what = tensor.name.substr(prefix.size());
      if (what == "latent") continue;
      if (what == "frames") {
        report_.Near(name_, tensor, ChannelsFirst(clip.frames, 3), kStages);
      } else if (what == "frames_uint8") {
        std::vector<uint8_t> levels(clip.frames.size());
        ToBytes(clip.frames, levels);
        report_.Levels(name_, tensor, levels, kLevelsShare);
      } else if (with_stages) {
        CompareStage(tensor, what, clip);
      }
    }
  }

 private:
  void CompareStage(const StoredTensor& tensor, const std::string& what, const Clip& clip) {
    std::vector<float> frames;
    size_t chunk = 0;
    if (what.starts_with("chunk") && what.find('.') != what.npos) {
      const std::string stage = what.substr(what.find('.') + 1);
      chunk = static_cast<size_t>(std::atoll(what.c_str() + 5));
      // This one is stored for the whole clip, under the first chunk.
      const bool whole = stage == "post_quant_conv";
      frames = StageFrames(clip, stage, chunk, whole ? clip.stages.size() : 1);
    } else {
      frames = StageFrames(clip, what, 0, clip.stages.size());
    }
    if (frames.empty()) return report_.Skip(name_, tensor.name);
    const int64_t channels = tensor.shape.empty() ? 0 : tensor.shape[0];
    report_.Near(name_, tensor, ChannelsFirst(frames, channels), kStages);
  }

  const std::string name_;
  const TensorFiles& file_;
  GoldenReport& report_;
};

}  // namespace

void VerifyGoldenVae(const GoldenFolder& golden, Communicator& comm, ThreadPool& pool,
                     GoldenReport& report) {
  const std::string name = "vae.safetensors";
  if (golden.Files(name, "").empty()) return report.Fail(name, "", "missing");
  const TensorFiles file = TensorFiles::OpenFile(golden.root / name);
  const VaeWeights weights = LoadVaeWeights(golden.checkpoint.Part("vae"), pool);
  VaeCheck check(name, file, report);
  for (const StoredTensor& tensor : file.tensors()) {
    const std::string_view whole = tensor.name;
    if (whole.starts_with("encode_") && !whole.ends_with(".video")) report.Skip(name, tensor.name);
    if (!whole.starts_with("decode_") || !whole.ends_with(".latent")) continue;
    const Clip clip = Decode(weights, tensor.ToF32(), comm, pool);
    const std::string prefix = tensor.name.substr(0, tensor.name.size() - 6);
    if (comm.rank() == 0) check.Compare(prefix, clip, comm.size() == 1);
  }
}

}  // namespace equitile
