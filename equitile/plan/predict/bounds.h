// What no plan can beat, as ratios of the same kind as rho: so that a rho can be judged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/cost_model.h"
#include "equitile/plan/predict/measure.h"

namespace equitile {

// The largest part of any division of `weights` into `parts`, each of at least `least` items, is at
// least this. Of the t·parts+1 heaviest items some part has t+1; the lightest of those, filled up
// to `least` with the lightest of all, bound it.
int64_t LargestPartBound(std::vector<int64_t> weights, int64_t parts, int64_t least);

struct LowerBounds {
  double kind = 1;  // for plans that divide as this one does (whole rows; whole lanes over U; rows
                    // and columns over R)
  double any = 1;   // for any division into kept blocks
};

// row_blocks: [lanes][q_blocks]. Never above the rho of `imbalance`, which must be the plan's own
// for this mask.
LowerBounds FindBounds(const Plan& plan, const BlockMask& mask, std::span<const int32_t> row_blocks,
                       const Imbalance& imbalance, const CostModel& model,
                       std::span<const double> speeds);

}  // namespace equitile
