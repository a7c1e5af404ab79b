// Masks that follow from the token grid alone, all heads alike: what others publish, to stand
// beside ours. Each keeps to its published rule; where a rule is silent (frames that no block
// divides, tiles that no grid divides, text) what we do is said here. Text blocks are always kept.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "equitile/pattern/head_pattern.h"
#include "equitile/pattern/lane_masks.h"

namespace equitile {

// Where a static mask is to be used.
struct StaticMaskPlace {
  Lanes lanes;
  TokenGrid grid;
  int64_t block_tokens = 64;
};

// Radial Attention (arXiv 2506.19852, mit-han-lab/radial-attention 72788d4, its rule for Wan). Two
// tokens at places a, b of frames at distance d belong together if
//   d <= 1, or the key is in the first frame, or
//   |a - b| <= max(decay * L(d), B), where L(d) = 2^(bits(P) - bits(d)), P places in a frame, B
//   tokens in a block, and, where L(d) < B, only for d divisible by B / L(d).
// A block is kept if more than 0.6 of its keys that belong to any of its queries belong to more
// than a third of them. Theirs counts that apart for every pair of frames; here blocks that hold
// parts of several frames are counted as they are, and blocks on the diagonal are always kept.
struct RadialOptions {
  double decay = 1;
};
LaneMasks RadialMasks(const StaticMaskPlace& place, const RadialOptions& options = {});

// Sliding Tile Attention (arXiv 2502.04507, hao-ai-lab/FastVideo): tokens in tiles; a query tile
// sees the window of tiles around it, shifted inwards at the borders, window / 2 tiles to either
// side. One window for all heads. Where tiles do not fill blocks, a block is kept if any of its
// pairs of tiles see each other.
struct SlidingTileOptions {
  std::array<int64_t, 3> tile = {6, 8, 8};    // tokens: frames, height, width
  std::array<int64_t, 3> window = {3, 3, 3};  // tiles
};
LaneMasks SlidingTileMasks(const StaticMaskPlace& place, const SlidingTileOptions& options = {});
// The published tile with the window whose share of pairs of tokens is nearest to the density; of
// equally near ones the smaller, then the shorter in time.
SlidingTileOptions SlidingTilesOfDensity(const TokenGrid& grid, double density);
// All of them, the nearest first.
struct SlidingTilesAt {
  SlidingTileOptions tiles;
  double density = 0;
};
std::vector<SlidingTilesAt> SlidingTilesByDensity(const TokenGrid& grid, double density);

// Every head diagonal or every head multi-diagonal (HeadMode), at one density.
LaneMasks WindowMasks(const StaticMaskPlace& place, HeadMode mode, double density = 0.3);

}  // namespace equitile
