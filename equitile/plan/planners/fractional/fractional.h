// The planner of our own: whole heads first, then only as many rows as it takes change hands, so
// that every rank has the same work and the busiest one moves as few bytes as can be found.
// docs/design/0012-fractional.md tells what was tried.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/cost_model.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

struct FractionalOptions {
  // Ranks within this of their share count as even. Less costs bytes and gains less than the time
  // it costs to send them.
  double tolerance = 0.002;
  // Heads whose rows need mostly K/V blocks near them may be computed where their tokens are: their
  // Q and O do not move at all. Off: heads are dealt out whole, and only leftovers are split.
  bool heads_at_home = true;
};

// [lanes] who computes which rows, every row on one rank. row_blocks: RowBlocks(mask). A rank's
// work is at most its share (total x speed / sum of speeds) plus the longest row. Rows that keep
// nothing are at home. Deterministic; linear in rows.
std::vector<RowRuns> PartitionFractional(const Problem& problem, const BlockMask& mask,
                                         std::span<const int32_t> row_blocks,
                                         const CostModel& model, const Cluster& cluster,
                                         const FractionalOptions& options = {});

// The partition with its head groups (fractional_groups.h), K/V by the mask.
Plan PlanFractional(const Problem& problem, const BlockMask& mask,
                    std::span<const int32_t> row_blocks, const CostModel& model,
                    const Cluster& cluster, const FractionalOptions& options = {});

}  // namespace equitile
