// One tile of a linear layer on one thread: the part that sees SIMD. Internal to this part; callers
// use linear.h, which cuts calls into tiles and hands them to threads.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/range.h"
#include "equitile/kernel/linear/linear.h"

namespace equitile {

// The wanted columns of one panel.
struct PanelColumns {
  int64_t panel = 0;
  Range columns;  // within [16 panel, 16 panel + 16)
};

// A part of the depth.
struct DepthPiece {
  Range inputs;   // of the weights, at most kPieceDepth words
  int64_t x = 0;  // where these inputs begin in rows of x
};

struct LinearTile {
  const LinearArgs* args = nullptr;
  Range tokens;                          // at most kTileTokens
  std::span<const PanelColumns> panels;  // at most MaxTilePanels
  std::span<const DepthPiece> pieces;    // at least one, ascending
  // Rows of the tile's tokens [tokens][inputs], as a producer made them (f32) or rounded to the
  // integers that the weights are; null: args->x.view.
  const void* rows = nullptr;
  int64_t row_stride = 0;
  const float* scales = nullptr;  // of rounded rows, [tokens]
};

// Cache blocking. The depth is cut into pieces of at most kPieceDepth (DepthPieces); of integers a
// piece is a part whose sums are exact (rounding.h). A piece of one panel stays in L1 while all
// rows of the tile pass over it; the tile's rows of that depth stay in L2 while all panels pass
// over them; so do the sums, which wait there for the next piece. Rows lie side by side, in groups
// of 16 inputs: read where they are they would cost the loop six addresses. Sums go out with every
// register tile, not with every panel, so that stores spread out. The next panel is brought to L2 a
// line per 16 steps. Sizes and ways that were tried: docs/design/0004-linear.md.
inline constexpr int64_t kTileTokens = 96;  // a multiple of every target's rows per register tile
inline constexpr int64_t kTilePanels = 32;
inline constexpr int64_t kPieceDepth = 256;  // words of 32 bits

// Panels of a tile at most: without waiting sums, which a single piece does not have, more.
constexpr int64_t MaxTilePanels(int64_t pieces) { return pieces == 1 ? 64 : kTilePanels; }

// Floats of scratch that ComputeLinearTile needs.
int64_t LinearTileScratchFloats();
void ComputeLinearTile(const LinearTile& tile, float* scratch);

}  // namespace equitile
