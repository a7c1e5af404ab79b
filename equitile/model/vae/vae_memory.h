// What decoding will need, from shapes alone: for --dry-run, before any weight is read.
#pragma once

#include <cstdint>
#include <optional>

#include "equitile/model/vae/vae_config.h"
#include "equitile/model/vae/vae_tiling.h"

namespace equitile {

struct VaeClipShape {
  int64_t latent_frames = 1, latent_height = 0, latent_width = 0;
  std::optional<VaeTiling> tiling;
};

// In bytes, of the rank with most.
struct VaeMemory {
  int64_t weights = 0;    // kept, and the largest layer that is packed for every use
  int64_t windows = 0;    // frames before, of all causal convolutions
  int64_t computing = 0;  // frames on their way and scratch, of the level that needs most
  int64_t clips = 0;      // in tiles only: pictures until the last tile is done
  int64_t Total() const { return weights + windows + computing + clips; }
};

// Ranks cut a frame into rows, or share out the tiles. Of the clip's length only `clips` depends.
VaeMemory PredictVaeMemory(const VaeConfig& config, const VaeClipShape& clip, int32_t ranks,
                           int threads);

}  // namespace equitile
