// Which ring rank owns which query and which key blocks, for one Ulysses group of dbsp+: a search
// on what the group's ring really takes, F = sum over stages s of max over ranks r of C[r, (r+s)
// mod R], plus a price per block that leaves its home.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"

namespace equitile {

struct BlockSearchOptions {
  double price = 0;      // of a moved block, in kept blocks of F
  int64_t goal = 0;      // F below this is worth nothing
  int64_t sweeps = 48;   // at most; large searches make fewer
  int64_t searches = 1;  // that share the time: one per group
};

struct BlockPlan {
  std::vector<int32_t> q_owner;   // [q_blocks] ring rank
  std::vector<int32_t> kv_owner;  // [kv_blocks] ring rank
  int64_t crit = 0;               // F
  int64_t moved = 0;              // query and key blocks not at home
};

// Blocks start at home (HomeOwners) and change places in pairs, so a rank owns as many as at home.
// max(F, goal) + price·moved of the result is never above that of the start. Deterministic; time
// grows linearly with blocks and sweeps.
BlockPlan BalanceBlocks(const BlockMask& mask, std::span<const int32_t> lanes, int64_t ring,
                        const BlockSearchOptions& options);

}  // namespace equitile
