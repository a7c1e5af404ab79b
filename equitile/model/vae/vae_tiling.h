// Decoding in overlapping tiles, for frames whose activations do not fit into memory: every tile is
// a clip of its own, and overlaps are blended. Changes the picture a little (a tile's attention and
// borders see only the tile), so it is done only where asked for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "equitile/model/vae/vae_decoder.h"

namespace equitile {

// In pixels; multiples of the decoder's spatial scale. Defaults are those of diffusers.
struct VaeTiling {
  int64_t tile = 256;
  int64_t stride = 192;  // tiles begin so far apart; the rest is overlap

  // Do frames of so many latents, `scale` pixels each, fit into one tile?
  bool OneTile(int64_t latent_height, int64_t latent_width, int64_t scale) const {
    return std::max(latent_height, latent_width) * scale <= tile;
  }
};

// As DecodeVideo, and as diffusers with tiling enabled: frames that fit into one tile are decoded
// whole; else overlaps are blended linearly, first with the tile above, then with the one on the
// left. Tiles are dealt out to the ranks; blending and frames are rank 0's, which holds all frames
// until the last tile is done. go_on is asked before every latent frame of a tile. Throws
// InputError for tilings that do not fit.
bool DecodeVideoTiled(const VaeWeights& weights, const ConstView& latents, const VaeTiling& tiling,
                      ThreadPool& pool, Communicator* comm, VaeFrameSink sink, VaeGoOn go_on = {});

}  // namespace equitile
