#include "apps/plan/plan_run.h"

#include <algorithm>

#include "equitile/base/timer.h"

namespace equitile {
namespace {

// A first run pays for cold caches, so the best of several counts, as long as they are short.
constexpr double kEnoughSeconds = 0.02;
constexpr int kMostRuns = 500;

}  // namespace

TimedPlan PlanWithClock(const PlannerSpec& spec, const LaneMasks& masks,
                        const PlanOptions& options) {
  TimedPlan best;
  const Stopwatch all_runs;
  for (int run = 0; run < kMostRuns && (run == 0 || all_runs.Seconds() < kEnoughSeconds); ++run) {
    const Stopwatch watch;
    RowCounts rows(masks.blocks());
    MadePlan made = MakePlan(spec, masks, rows, options);
    TimedPlan timed{.plan = std::move(made.plan), .score = {}, .chosen = {}, .plan_seconds = 0};
    timed.score =
        ScorePlan(timed.plan, masks, rows, options.cost, options.cluster, std::move(made.work));
    timed.plan_seconds = watch.Seconds();
    if (Chooses(spec.kind)) timed.chosen = timed.plan.planner().Text();
    if (run == 0 || timed.plan_seconds < best.plan_seconds) best = std::move(timed);
  }
  return best;
}

std::vector<PlanReport> ReportPlanners(const std::vector<PlannerSpec>& specs,
                                       const LaneMasks& masks, const PlanOptions& options) {
  RowCounts rows(masks.blocks());
  std::vector<PlanReport> reports;
  for (const PlannerSpec& spec : specs) {
    TimedPlan timed = PlanWithClock(spec, masks, options);
    reports.push_back(MakeReport(timed.plan, timed.score, masks, rows, options));
    reports.back().planner = spec.Text();
    reports.back().chosen = timed.chosen;
    reports.back().plan_seconds = timed.plan_seconds;
  }
  std::vector<PlanReport> sorted;
  for (size_t i : BestFirst(reports)) sorted.push_back(std::move(reports[i]));
  return sorted;
}

}  // namespace equitile
