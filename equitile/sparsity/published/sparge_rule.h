// SpargeAttn's choice of blocks (arXiv 2502.18137, thu-ml/SpargeAttn bfd980b, its top-k form): the
// rule alone; whoever has the tensors brings what is pooled from them.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/pattern/block_mask.h"

namespace equitile {

struct SpargeOptions {
  double top_k = 0.5;  // share of the key blocks of a row, rounded down, at least one
  // A block less like itself than this is kept: as keys for every query, as queries with every key.
  // The published value for top-k, which no block falls below; 0.6 goes with a budget of mass.
  double least_similarity = -0.1;
};

// One lane, blocks in its order. Theirs takes 128 queries and 64 keys to a block; ours are of one
// size.
struct SpargeBlocks {
  int64_t head_dim = 0;
  std::span<const float> q_means;       // [q_blocks, head_dim]
  std::span<const float> k_means;       // [kv_blocks, head_dim], of keys minus the mean of all keys
  std::span<const float> q_similarity;  // [q_blocks]: |sum x / |x||^2 / n^2 over a block's queries
  std::span<const float> k_similarity;  // [kv_blocks], of the keys minus that mean
};

// Fills the lane, which must be empty: per row the top-k key blocks by pooled score, of equal ones
// the lower index first. Blocks of keys that are unlike themselves have no score and are not among
// them (unless there are too few others). Throws InputError for means that are not finite.
void KeepBySparge(const SpargeBlocks& blocks, const SpargeOptions& options, int64_t lane,
                  BlockMask& mask);

}  // namespace equitile
