// One tile of a linear layer on one thread: the part that sees SIMD. Internal to the room; callers
// use linear.h, which cuts calls into tiles and hands them to threads.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/range.h"
#include "equitile/kernel/linear.h"

namespace equitile {

// The wanted columns of one panel.
struct PanelColumns {
  int64_t panel = 0;
  Range columns;  // within [16 panel, 16 panel + 16)
};

struct LinearTile {
  const LinearArgs* args = nullptr;
  Range tokens;                          // at most kTileTokens
  std::span<const PanelColumns> panels;  // at most kTilePanels
  // Rows of the tile's tokens as a producer made them, f32 [tokens][in]; null: args->x.view.
  const float* rows = nullptr;
  int64_t row_stride = 0;
};

// Cache blocking. The depth is cut into pieces of at most kPieceDepth. A piece of one panel stays
// in L1 while all rows of the tile pass over it; the tile's rows of that depth stay in L2 while all
// panels pass over them; so do the sums, which wait there for the next piece.
//
// Measured on AVX2 (EPYC 7003, 32 KiB L1, 512 KiB L2), one thread, as a fraction of the peak of
// multiply-adds, with rows in L2, panels from L3:
//   tile of 96 tokens, pieces of 256                                  0.975
//   pieces of 192 or 384                                              0.974, 0.971
//   rows 1536, 1024, 4096 floats apart instead of side by side        0.968, 0.952, 0.95
//   nothing leaves L1 (the bound of the register tile)                0.981
// Rows are put side by side, in groups of 16 inputs. Read where they lie they cost the loop six
// addresses, 29 instructions for 12 multiply-adds instead of 21: as fast on a quiet machine, but
// where the core's other hardware thread is busy three medians of 1536 -> 1536
// were 0.74, 0.70, 0.64 and became 0.81, 0.78, 0.73.
// Depth inside the loop over panels (tiles of 48 tokens, no waiting sums) is as fast on a quiet
// machine, but reads panels from L3 twice as often. Sums go out with every register tile, not with
// every panel: on 192 deep layers that gains 4 percent, since the stores spread out.
// The next panel is brought to L2 a line per 16 steps; many lines at once lost 2 to 8 percent. With
// sums that leave from registers where only a bias is added, processor time against the peak, calls
// in turns, other work on the machine: 192 -> 192 0.72 to 0.76, 192 -> 576 0.73 to 0.79,
// 1536 -> 1536 0.74 to 0.80. Bringing the next rows of x likewise: no difference.
inline constexpr int64_t kTileTokens = 96;  // a multiple of every target's rows per register tile
inline constexpr int64_t kTilePanels = 32;
inline constexpr int64_t kPieceDepth = 256;

// Panels of a tile at most: without waiting sums, which a single piece does not have, more.
constexpr int64_t MaxTilePanels(int64_t in) { return in <= kPieceDepth ? 64 : kTilePanels; }

// Floats of scratch that ComputeLinearTile needs.
int64_t LinearTileScratchFloats();
void ComputeLinearTile(const LinearTile& tile, float* scratch);

}  // namespace equitile
