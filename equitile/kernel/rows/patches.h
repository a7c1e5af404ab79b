// Between latents and tokens. The two directions order a token's features differently, so they are
// two functions and not one with its inverse: channel slowest on the way in, fastest on the way
// out.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/pattern/token_grid.h"
#include "equitile/tensor/view.h"

namespace equitile {

struct PatchSize {
  int64_t frames = 1, height = 2, width = 2;

  int64_t Elements() const { return frames * height * width; }
  friend bool operator==(const PatchSize&, const PatchSize&) = default;
};

// The tokens of latents [channels, frames, height, width]. Throws InputError unless every extent is
// a positive multiple of the patch's.
TokenGrid PatchGrid(const ConstView& latent, const PatchSize& patch);

// rows [count][channels * patch]: feature ((c * p_t + dt) * p_h + dy) * p_w + dx of a token is
// latent[c, f p_t + dt, h p_h + dy, w p_w + dx]. latent: f32, any strides. places: where tokens lie
// in the video (PlaceOfToken); empty: at their own numbers.
void GatherPatches(const ConstView& latent, const PatchSize& patch, int64_t first_token,
                   int64_t count, float* rows, std::span<const int32_t> places = {});

// The way back, rows [count][patch * channels] with feature ((dt * p_h + dy) * p_w + dx) * channels
// + c. Other tokens' elements of `latent` are left as they are.
void ScatterPatches(const float* rows, const PatchSize& patch, int64_t first_token, int64_t count,
                    const View& latent, std::span<const int32_t> places = {});

}  // namespace equitile
