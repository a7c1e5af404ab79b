#include "equitile/kernel/rows/patches.h"

#include "equitile/base/error.h"

namespace equitile {
namespace {

// The element of a token at (c, dt, dy, dx) lies at token_offset + c * strides[0] + ...
template <typename Visit>
void ForEachToken(const ConstView& latent, const PatchSize& patch, std::span<const int32_t> places,
                  int64_t first_token, int64_t count, const Visit& visit) {
  const int64_t height = latent.Extent(2) / patch.height, width = latent.Extent(3) / patch.width;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t token = first_token + t;
    const int64_t place = places.empty() ? token : places[static_cast<size_t>(token)];
    const int64_t w = place % width, h = place / width % height, f = place / width / height;
    visit(t, latent.Offset(0, f * patch.frames, h * patch.height, w * patch.width));
  }
}

}  // namespace

TokenGrid PatchGrid(const ConstView& latent, const PatchSize& patch) {
  const int64_t sizes[] = {patch.frames, patch.height, patch.width};
  if (latent.Rank() != 4) {
    throw InputError("[kernel] latents {}: must be [channels, frames, height, width]",
                     latent.shape().ToString());
  }
  for (int i = 0; i < 3; ++i) {
    if (latent.Extent(i + 1) < 1 || latent.Extent(i + 1) % sizes[i] != 0) {
      throw InputError("[kernel] latents {}: frames, height, width must be multiples of {}, {}, {}",
                       latent.shape().ToString(), sizes[0], sizes[1], sizes[2]);
    }
  }
  TokenGrid grid;
  grid.frames = latent.Extent(1) / patch.frames;
  grid.height = latent.Extent(2) / patch.height;
  grid.width = latent.Extent(3) / patch.width;
  return grid;
}

void GatherPatches(const ConstView& latent, const PatchSize& patch, int64_t first_token,
                   int64_t count, float* rows, std::span<const int32_t> places) {
  const float* data = latent.DataAs<float>();
  const int64_t channels = latent.Extent(0), features = channels * patch.Elements();
  ForEachToken(latent, patch, places, first_token, count, [&](int64_t t, int64_t offset) {
    float* to = rows + t * features;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t dt = 0; dt < patch.frames; ++dt) {
        for (int64_t dy = 0; dy < patch.height; ++dy) {
          const float* from = data + offset + latent.Offset(c, dt, dy, 0);
          for (int64_t dx = 0; dx < patch.width; ++dx) *to++ = from[dx * latent.Stride(3)];
        }
      }
    }
  });
}

void ScatterPatches(const float* rows, const PatchSize& patch, int64_t first_token, int64_t count,
                    const View& latent, std::span<const int32_t> places) {
  float* data = latent.DataAs<float>();
  const int64_t channels = latent.Extent(0), features = channels * patch.Elements();
  ForEachToken(latent, patch, places, first_token, count, [&](int64_t t, int64_t offset) {
    const float* from = rows + t * features;
    for (int64_t dt = 0; dt < patch.frames; ++dt) {
      for (int64_t dy = 0; dy < patch.height; ++dy) {
        for (int64_t dx = 0; dx < patch.width; ++dx) {
          float* to = data + offset + latent.Offset(0, dt, dy, dx);
          for (int64_t c = 0; c < channels; ++c) to[c * latent.Stride(0)] = *from++;
        }
      }
    }
  });
}

}  // namespace equitile
