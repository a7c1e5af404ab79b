// The quick figures of a plan, without lowering it: what a planner is judged by, and what
// re-scoring a kept plan costs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/home_map.h"
#include "equitile/plan/machine.h"
#include "equitile/plan/measure.h"
#include "equitile/plan/plan.h"
#include "equitile/plan/stage_work.h"
#include "equitile/plan/traffic.h"

namespace equitile {

struct Score {
  StageWork work;
  Imbalance imbalance;
  Moved moved;
  Traffic traffic;
};

// work: where it is known from planning, else it is counted.
Score ScorePlan(const Plan& plan, const BlockMask& mask, RowCounts& rows, const CostModel& model,
                const Cluster& cluster, std::optional<StageWork> work = std::nullopt);

// The imbalance of a kept plan for a new mask, in one pass over the mask. Throws InputError if the
// mask does not fit.
Imbalance Rescore(const Plan& plan, const BlockMask& mask, const CostModel& model,
                  std::span<const double> speeds = {});

// When to plan anew. Without a threshold: when the better balance saves more time than planning
// costs. With one (the paper's rule, 1.10 there): when the kept plan's ratio has reached it; then
// rho_new is not needed.
struct ReplanRule {
  double threshold = 0;  // 0: by the time saved

  bool NeedsNewRho() const { return threshold <= 0; }
  bool ShouldReplan(double rho_kept, double rho_new, double attention_seconds,
                    double planning_seconds) const {
    if (threshold > 0) return rho_kept >= threshold;
    return (rho_kept - rho_new) * attention_seconds > planning_seconds;
  }
};

}  // namespace equitile
