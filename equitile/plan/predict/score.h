// The quick figures of a plan, without lowering it: what a planner is judged by, and what
// re-scoring a kept plan costs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/plan/predict/measure.h"
#include "equitile/plan/predict/stage_work.h"
#include "equitile/plan/predict/traffic.h"

namespace equitile {

struct Score {
  StageWork work;
  Imbalance imbalance;
  Moved moved;
  Traffic traffic;
};

// work: where it is known from planning, else it is counted.
Score ScorePlan(const Plan& plan, const LaneMasks& masks, RowCounts& rows, const CostModel& model,
                const Cluster& cluster, std::optional<StageWork> work = std::nullopt);

// The imbalance of a kept plan for a new mask, in one pass over the mask. Throws InputError if the
// mask does not fit.
Imbalance Rescore(const Plan& plan, const BlockMask& mask, const CostModel& model,
                  std::span<const double> speeds = {});

}  // namespace equitile
