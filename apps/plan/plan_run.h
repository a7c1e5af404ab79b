// Planning with a stopwatch: the plan room has no clock.
#pragma once

#include <string>
#include <vector>

#include "equitile/io/records/plan_report_json.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {

struct TimedPlan {
  Plan plan;
  Score score;
  std::string chosen;       // auto: what it chose
  double plan_seconds = 0;  // costs + plan + rho, moved, bytes; the best of up to twenty runs
};

TimedPlan PlanWithClock(const PlannerSpec& spec, const LaneMasks& masks,
                        const PlanOptions& options);

// Reports of all planners, best first.
std::vector<PlanReport> ReportPlanners(const std::vector<PlannerSpec>& specs,
                                       const LaneMasks& masks, const PlanOptions& options);

}  // namespace equitile
