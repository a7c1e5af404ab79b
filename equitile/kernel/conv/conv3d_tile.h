// Blocks of a convolution on one thread: the part that sees SIMD. Internal to this part; callers
// use conv3d.h, which cuts calls into blocks and hands them to threads.
#pragma once

#include <cstdint>

#include "equitile/base/range.h"
#include "equitile/kernel/conv/conv3d.h"

namespace equitile {

// The depth of a chain is cut into pieces whose panel stays in L1; sums wait in memory between
// them.
inline constexpr int64_t kConvPieceDepth = 320;

// Tiles of 2 x 2 output pixels, numbered row by row over the picture, of all frames of the call.
struct WinogradBlock {
  const ConvArgs* args = nullptr;
  int64_t out_frames = 0;
  Range tiles;
  int64_t tiles_wide = 0;
};
int64_t WinogradScratchFloats(const PackedConv& weights, int64_t out_frames, int64_t tiles);
void ComputeWinogradBlock(const WinogradBlock& block, float* scratch);

// Input pixels [columns] of rows [rows] of one frame: as many output pixels, or, upsampled, those
// of one variant.
struct DirectBlock {
  const ConvArgs* args = nullptr;
  int64_t frame = 0;
  int64_t variant = 0;
  Range rows, columns;
};
int64_t DirectScratchFloats(const PackedConv& weights, int64_t pixels);
void ComputeDirectBlock(const DirectBlock& block, float* scratch);

}  // namespace equitile
