// The layouts that the field runs today: contiguous heads, contiguous rows, no look at the mask.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/plan/core/plan.h"

namespace equitile {

// How U x R ranks divide a batch. Items of a batch share no attention, so where the degrees allow
// it (`items` = batch) each item gets its own ranks, those of its home, with `ulysses` x `ring` of
// them; otherwise items = 1 and all lanes share all ranks.
struct BatchSplit {
  int32_t items = 1, ulysses = 1, ring = 1;
  friend bool operator==(const BatchSplit&, const BatchSplit&) = default;
};
BatchSplit SplitBatch(int64_t batch, int32_t ulysses, int32_t ring);

// [blocks] ring rank r that holds the block in EvenPart(blocks, r, ring).
std::vector<int32_t> EvenOwners(int64_t blocks, int64_t ring);

// Contiguous lanes per rank, one all-to-all each way.
Plan PlanUlysses(const Problem& problem);
// Rows stay at home, K/V go around.
Plan PlanRing(const Problem& problem);
// Contiguous lanes over U groups, contiguous rows over R ring ranks. Throws InputError unless U*R =
// ranks.
Plan PlanUsp(const Problem& problem, int32_t ulysses, int32_t ring);

}  // namespace equitile
