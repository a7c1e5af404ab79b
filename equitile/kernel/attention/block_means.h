// Means over the tokens of kv blocks: what stands for a block that a row does not keep
// (Tail::kMean).
#pragma once

#include <cstdint>

#include "equitile/base/range.h"
#include "equitile/kernel/rows/strips.h"
#include "equitile/pattern/block_grid.h"

namespace equitile {

// Of one lane's keys and values: block b's means are [head_dim] floats at k + b * stride and at
// v + b * stride. Plain rows, not strips: the kernel moves the ones that a row skips side by side
// anyway, and whoever receives them has nothing to pack.
struct LaneMeans {
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
};

struct BlockMeansArgs {
  const TokenSource* source = nullptr;  // of keys or of values
  Lanes lanes;
  int64_t lane = 0;
  BlockGrid grid;
  int64_t head_dim = 0;
  const int32_t* token_at_position = nullptr;  // null: natural; strips are in order already
  Range blocks;                                // kv blocks
  int64_t stride = 0;                          // floats from one mean to the next
};

// means[i] of block blocks.begin + i. Sums in f32: 16 tokens after each other, then these sums
// after each other, then times 1 / tokens. So every source and every SIMD target gives the same
// bits, and a block's mean may be made wherever its tokens are at home.
void BlockMeans(const BlockMeansArgs& args, float* means);

}  // namespace equitile
