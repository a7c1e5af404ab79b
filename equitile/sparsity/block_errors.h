// What it costs to leave a block out: how far the outputs of a block's queries move when one kv
// block is no longer computed but stands there as its mean, or not at all. Mass is the wrong
// yardstick where means take the place of what is left out: an even block may hold much and lose
// nothing. Judged by a few queries of each block, which are computed exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/pattern/tail.h"
#include "equitile/sparsity/block_partials.h"

namespace equitile {

// Positions of the queries that stand for their blocks: `rows` of each, evenly spread, fewer where
// a block has fewer; ascending.
std::vector<int64_t> SampledPositions(const BlockGrid& grid, int64_t rows);

// Of one lane in one order.
struct BlockErrors {
  // [q blocks][kv blocks]: sum over the block's queries of the square of what the output moves by
  // when this block alone is left out, to first order.
  std::vector<float> errors;
  double squares = 0;  // of all outputs: what errors are a share of
};

// queries: those of SampledPositions, [positions][head_dim].
BlockErrors ErrorsOf(const LaneKeys& keys, std::span<const float> queries, int64_t rows, Tail tail,
                     ThreadPool& pool, BlockPartials& partials);

// The fewest blocks that may be kept so that the errors of all others sum up to at most `allowed`.
int64_t BlocksNeeded(std::span<const float> errors, double allowed);

}  // namespace equitile
