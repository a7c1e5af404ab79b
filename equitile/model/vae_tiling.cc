#include "equitile/model/vae_tiling.h"

#include <algorithm>
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

  void Run(VaeFrameSink sink) {
    if (rank_ != 0) return DecodeForOthers();
    const int64_t frames = weights_.config.Frames(latents_.Extent(1));
    Clip video(frames, latents_.Extent(2) * scale_, latents_.Extent(3) * scale_);
    const int64_t overlap = tiling_.tile - tiling_.stride;
    std::vector<Clip> above;
    for (int64_t row = 0; row < rows_; ++row) {
      std::vector<Clip> current;
      for (int64_t column = 0; column < columns_; ++column) {
        Clip tile = Take(row, column);
        if (row > 0) BlendAbove(above[static_cast<size_t>(column)], overlap, tile);
        if (column > 0) BlendLeft(current.back(), overlap, tile);
        Keep(tile, row, column, video);
        current.push_back(std::move(tile));
      }
      above = std::move(current);
    }
    for (float& value : video.rgb) value = std::clamp(value, -1.0f, 1.0f);
    for (int64_t f = 0; f < frames; ++f) {
      sink(f, {video.At(f, 0, 0), static_cast<size_t>(video.height * video.width * 3)});
    }
  }

 private:
  int32_t Owner(int64_t row, int64_t column) const {
    return static_cast<int32_t>((row * columns_ + column) % ranks_);
  }

  // The tile's part of an axis, in latents.
  Range Part(int64_t index, int64_t extent) const {
    const int64_t begin = index * tiling_.stride / scale_;
    return {begin, std::min(extent, begin + tiling_.tile / scale_)};
  }

  Clip Empty(int64_t row, int64_t column) const {
    return Clip(weights_.config.Frames(latents_.Extent(1)),
                Part(row, latents_.Extent(2)).size() * scale_,
                Part(column, latents_.Extent(3)).size() * scale_);
  }

  Clip Decode(int64_t row, int64_t column) {
    Clip tile = Empty(row, column);
    const ConstView part =
        latents_.Slice(2, Part(row, latents_.Extent(2))).Slice(3, Part(column, latents_.Extent(3)));
    VaeDecoder decoder(weights_, part.Extent(2), part.Extent(3), pool_);
    decoder.KeepBeyondOne();
    for (int64_t f = 0; f < part.Extent(1); ++f) {
      decoder.Push(part.Select(1, f), [&](int64_t frame, std::span<const float> rgb) {
        std::copy(rgb.begin(), rgb.end(), tile.At(frame, 0, 0));
      });
    }
    return tile;
  }

  Clip Take(int64_t row, int64_t column) {
    const int32_t owner = Owner(row, column);
    if (owner == 0) return Decode(row, column);
    Clip tile = Empty(row, column);
    CommRequest request =
        comm_->Receive(std::as_writable_bytes(std::span(tile.rgb)), owner, kTileTag);
    comm_->Wait(request);
    return tile;
  }

  void DecodeForOthers() {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = 0; column < columns_; ++column) {
        if (Owner(row, column) != rank_) continue;
        const Clip tile = Decode(row, column);
        CommRequest request = comm_->Send(std::as_bytes(std::span(tile.rgb)), 0, kTileTag);
        comm_->Wait(request);
      }
    }
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
};

}  // namespace

void DecodeVideoTiled(const VaeWeights& weights, const ConstView& latents, const VaeTiling& tiling,
                      ThreadPool& pool, Communicator* comm, VaeFrameSink sink) {
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
  TiledDecode(weights, latents, tiling, pool, comm).Run(sink);
}

}  // namespace equitile
