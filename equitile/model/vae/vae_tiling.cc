#include "equitile/model/vae/vae_tiling.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr int32_t kTileTag = 7003;

// Pixels [frames][height][width][3].
struct Clip {
  int64_t frames = 0, height = 0, width = 0;
  std::vector<float> rgb;

  Clip() = default;
  Clip(int64_t f, int64_t h, int64_t w)
      : frames(f), height(h), width(w), rgb(static_cast<size_t>(f * h * w * 3)) {}
  float* At(int64_t f, int64_t y, int64_t x) {
    return rgb.data() + ((f * height + y) * width + x) * 3;
  }
};

void Blend(const float* from, double weight, float* to) {
  const auto w = static_cast<float>(weight), rest = static_cast<float>(1.0 - weight);
  for (int c = 0; c < 3; ++c) to[c] = from[c] * rest + to[c] * w;
}

// The last rows of the tile above fade into the first rows of the tile.
void BlendAbove(Clip& above, int64_t overlap, Clip& tile) {
  const int64_t rows = std::min({overlap, above.height, tile.height});
  for (int64_t f = 0; f < tile.frames; ++f) {
    for (int64_t y = 0; y < rows; ++y) {
      const double weight = static_cast<double>(y) / static_cast<double>(rows);
      for (int64_t x = 0; x < tile.width; ++x) {
        Blend(above.At(f, above.height - rows + y, x), weight, tile.At(f, y, x));
      }
    }
  }
}

void BlendLeft(Clip& left, int64_t overlap, Clip& tile) {
  const int64_t columns = std::min({overlap, left.width, tile.width});
  for (int64_t f = 0; f < tile.frames; ++f) {
    for (int64_t y = 0; y < tile.height; ++y) {
      for (int64_t x = 0; x < columns; ++x) {
        const double weight = static_cast<double>(x) / static_cast<double>(columns);
        Blend(left.At(f, y, left.width - columns + x), weight, tile.At(f, y, x));
      }
    }
  }
}

class TiledDecode {
 public:
  TiledDecode(const VaeWeights& weights, const ConstView& latents, const VaeTiling& tiling,
              ThreadPool& pool, Communicator* comm)
      : weights_(weights),
        latents_(latents),
        tiling_(tiling),
        scale_(weights.config.SpatialScale()),
        pool_(pool),
        comm_(comm),
        rank_(comm == nullptr ? 0 : comm->rank()),
        ranks_(comm == nullptr ? 1 : comm->size()),
        rows_(CeilDiv(latents.Extent(2) * scale_, tiling.stride)),
        columns_(CeilDiv(latents.Extent(3) * scale_, tiling.stride)) {}

  // In rounds of one tile per rank, so that all ask go_on equally often. False: it ended them.
  bool Run(VaeFrameSink sink, VaeGoOn go_on) {
    Clip video;
    if (rank_ == 0)
      video = Clip(Frames(), latents_.Extent(2) * scale_, latents_.Extent(3) * scale_);
    for (int64_t first = 0; first < rows_ * columns_; first += ranks_) {
      Clip own;
      if (!Decode(first + rank_, go_on, own)) return false;
      if (rank_ > 0) {
        Send(own);
        continue;
      }
      Place(first, std::move(own), video);
      const int64_t end = std::min(first + ranks_, rows_ * columns_);
      for (int64_t tile = first + 1; tile < end; ++tile) {
        Place(tile, Receive(tile, static_cast<int32_t>(tile - first)), video);
      }
    }
    if (rank_ > 0) return true;
    for (float& value : video.rgb) value = std::clamp(value, -1.0f, 1.0f);
    for (int64_t f = 0; f < video.frames; ++f) {
      sink(f, {video.At(f, 0, 0), static_cast<size_t>(video.height * video.width * 3)});
    }
    return true;
  }

 private:
  int64_t Frames() const { return weights_.config.Frames(latents_.Extent(1)); }

  // The tile's part of an axis, in latents.
  Range Part(int64_t index, int64_t extent) const {
    const int64_t begin = index * tiling_.stride / scale_;
    return {begin, std::min(extent, begin + tiling_.tile / scale_)};
  }

  Range Rows(int64_t tile) const { return Part(tile / columns_, latents_.Extent(2)); }
  Range Columns(int64_t tile) const { return Part(tile % columns_, latents_.Extent(3)); }

  Clip Empty(int64_t tile) const {
    return Clip(Frames(), Rows(tile).size() * scale_, Columns(tile).size() * scale_);
  }

  // Past the last tile nothing is decoded, but go_on is asked. False: it ended the decoding.
  bool Decode(int64_t tile, VaeGoOn go_on, Clip& clip) {
    const bool is_there = tile < rows_ * columns_;
    std::unique_ptr<VaeDecoder> decoder;
    if (is_there) {
      clip = Empty(tile);
      decoder =
          std::make_unique<VaeDecoder>(weights_, Rows(tile).size(), Columns(tile).size(), pool_);
      decoder->KeepBeyondOne();
    }
    for (int64_t f = 0; f < latents_.Extent(1); ++f) {
      if (go_on && !go_on()) return false;
      if (!is_there) continue;
      const ConstView part = latents_.Select(1, f).Slice(1, Rows(tile)).Slice(2, Columns(tile));
      decoder->Push(part, [&](int64_t frame, std::span<const float> rgb) {
        std::copy(rgb.begin(), rgb.end(), clip.At(frame, 0, 0));
      });
    }
    return true;
  }

  Clip Receive(int64_t tile, int32_t from) {
    Clip clip = Empty(tile);
    CommRequest request =
        comm_->Receive(std::as_writable_bytes(std::span(clip.rgb)), from, kTileTag);
    comm_->Wait(request);
    return clip;
  }

  void Send(const Clip& clip) {
    if (clip.rgb.empty()) return;
    CommRequest request = comm_->Send(std::as_bytes(std::span(clip.rgb)), 0, kTileTag);
    comm_->Wait(request);
  }

  // Tiles come in order.
  void Place(int64_t tile, Clip clip, Clip& video) {
    const int64_t overlap = tiling_.tile - tiling_.stride, column = tile % columns_;
    if (column == 0) above_ = std::exchange(current_, {});
    if (tile >= columns_) BlendAbove(above_[static_cast<size_t>(column)], overlap, clip);
    if (column > 0) BlendLeft(current_.back(), overlap, clip);
    Keep(clip, tile / columns_, column, video);
    current_.push_back(std::move(clip));
  }

  // The first stride of rows and columns; the rest comes from the next tiles.
  void Keep(Clip& tile, int64_t row, int64_t column, Clip& video) const {
    const int64_t top = row * tiling_.stride, left = column * tiling_.stride;
    const int64_t height = std::min(tile.height, tiling_.stride);
    const int64_t width = std::min(tile.width, tiling_.stride);
    for (int64_t f = 0; f < tile.frames; ++f) {
      for (int64_t y = 0; y < height; ++y) {
        std::copy_n(tile.At(f, y, 0), width * 3, video.At(f, top + y, left));
      }
    }
  }

  const VaeWeights& weights_;
  const ConstView latents_;
  const VaeTiling tiling_;
  const int64_t scale_;
  ThreadPool& pool_;
  Communicator* comm_;
  const int32_t rank_, ranks_;
  const int64_t rows_, columns_;
  std::vector<Clip> above_, current_;  // blended tiles of two rows; rank 0
};

}  // namespace

bool DecodeVideoTiled(const VaeWeights& weights, const ConstView& latents, const VaeTiling& tiling,
                      ThreadPool& pool, Communicator* comm, VaeFrameSink sink, VaeGoOn go_on) {
  const int64_t scale = weights.config.SpatialScale();
  if (latents.Rank() != 4) {
    throw InputError("[model] latents {}: must be [channels, frames, height, width]",
                     latents.shape().ToString());
  }
  if (tiling.stride < scale || tiling.tile < tiling.stride || tiling.stride % scale != 0 ||
      tiling.tile % scale != 0) {
    throw InputError(
        "[model] tiles of {} pixels, {} apart: must be multiples of {}, not further apart than "
        "they are large",
        tiling.tile, tiling.stride, scale);
  }
  if (tiling.OneTile(latents.Extent(2), latents.Extent(3), scale)) {
    return DecodeVideo(weights, latents, pool, comm, sink, go_on);
  }
  return TiledDecode(weights, latents, tiling, pool, comm).Run(sink, go_on);
}

}  // namespace equitile
