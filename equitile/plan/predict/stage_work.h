// How much each rank computes in each stage: straight from a Plan and a mask, without lowering,
// because planning and re-scoring must cost little more than one pass over the mask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/cost_model.h"

namespace equitile {

struct Work {
  int64_t blocks = 0;  // kept blocks
  int64_t rows = 0;    // rows, or parts of rows, that keep at least one block

  int64_t Cost(const CostModel& model) const { return blocks * model.block + rows * model.row; }
  friend bool operator==(const Work&, const Work&) = default;
};

struct StageWork {
  int32_t ranks = 0, stages = 0;
  std::vector<Work> work;  // [ranks][stages]

  const Work& At(int32_t rank, int32_t stage) const {
    return work[static_cast<size_t>(int64_t{rank} * stages + stage)];
  }
  Work& At(int32_t rank, int32_t stage) {
    return work[static_cast<size_t>(int64_t{rank} * stages + stage)];
  }
  Work OfRank(int32_t rank) const;
  friend bool operator==(const StageWork&, const StageWork&) = default;
};

// row_blocks: [lanes][q_blocks], RowBlocks(mask); handed in because the planner has counted them
// already.
StageWork CountStageWork(const Plan& plan, const BlockMask& mask,
                         std::span<const int32_t> row_blocks);

}  // namespace equitile
