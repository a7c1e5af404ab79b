#include "apps/plan/plan_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/io/records/plan_report_json.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

// One planner through the run, and figures of plans and masks that come again.
class PlannerRun {
 public:
  PlannerRun(const PlannerSpec& spec, const ReplanRule& rule, const PlanOptions& options)
      : name_(spec.Text()),
        options_(options),
        balancer_({.planner = spec, .plan = options, .rule = rule}, ClockOf(clock_)) {}

  PlannedCalls PlanFor(int32_t layer, const LaneMasks& masks) {
    const Plan& plan = *balancer_.PlanFor(layer, masks).plan;
    const auto [entry, is_new] = known_.try_emplace({plan.hash(), masks.hash()});
    if (is_new) entry->second = FiguresOf(plan, masks);
    return entry->second;
  }

  BalanceReport Balance() const { return balancer_.Report(); }

 private:
  PlannedCalls FiguresOf(const Plan& plan, const LaneMasks& masks) const {
    RowCounts rows(masks.blocks());
    const Score score = ScorePlan(plan, masks, rows, options_.cost, options_.cluster);
    PlannedCalls call{.planner = name_, .calls = 1};
    call.rho_sum = call.rho_max = score.imbalance.rho;
    if (score.moved.q_blocks) call.moved = *score.moved.q_blocks + *score.moved.kv_blocks;
    call.bytes = score.traffic.Max();
    call.seconds =
        Simulate(Lower(plan, masks), HomeMap(plan.problem()), score.work, options_.cluster).seconds;
    return call;
  }

  std::string name_;
  const PlanOptions& options_;
  SoloCommunicator clock_;
  Balancer balancer_;
  std::map<std::pair<uint64_t, uint64_t>, PlannedCalls> known_;
};

Json CallsJson(const PlannedCalls& calls) {
  return {{"planner", calls.planner},
          {"calls", calls.calls},
          {"rho_mean", calls.RhoMean()},
          {"rho_max", calls.rho_max},
          {"moved_blocks", calls.moved ? Json(*calls.moved) : Json(nullptr)},
          {"bytes", calls.bytes},
          {"predicted_seconds", calls.seconds}};
}

// The same planners everywhere, the fastest of the whole run first.
void SortPlanners(FolderReport& report) {
  std::vector<size_t> order(report.plans.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return report.plans[a].seconds < report.plans[b].seconds;
  });
  const auto sort = [&](auto& values) {
    auto sorted = values;
    for (size_t i = 0; i < order.size(); ++i) sorted[i] = values[order[i]];
    values = std::move(sorted);
  };
  sort(report.plans);
  sort(report.balances);
  for (PlannedStep& step : report.steps) sort(step.plans);
}

}  // namespace

void PlannedCalls::Add(const PlannedCalls& more) {
  moved = calls == 0            ? more.moved
          : moved && more.moved ? std::optional(*moved + *more.moved)
                                : std::nullopt;
  calls += more.calls;
  rho_sum += more.rho_sum;
  rho_max = std::max(rho_max, more.rho_max);
  bytes += more.bytes;
  seconds += more.seconds;
}

FolderReport PlanFolder(const PlanFlags& flags, const MaskTable& masks, const ReplanRule& rule,
                        const PlanOptions& options) {
  FolderReport report{.source = SourceOf(flags),
                      .lanes = masks.First().blocks().lanes(),
                      .grid = masks.First().blocks().grid()};
  if (flags.block && *flags.block != report.grid.block_tokens) {
    throw InputError("--block {}: the masks are of blocks of {}", *flags.block,
                     report.grid.block_tokens);
  }
  std::vector<std::unique_ptr<PlannerRun>> runs;
  for (const PlannerSpec& spec : ParsePlanners(flags.planners, options.ranks)) {
    runs.push_back(std::make_unique<PlannerRun>(spec, rule, options));
    report.plans.push_back({.planner = spec.Text()});
  }
  const std::vector<PlannedCalls> nothing = report.plans;
  for (const MaskTable::Place& place : masks.Places()) {
    if (flags.layer && place.layer && *place.layer != *flags.layer) continue;
    if (report.steps.empty() || report.steps.back().step != place.step)
      report.steps.push_back({.step = place.step, .plans = nothing});
    PlannedStep& step = report.steps.back();
    const double density = place.masks->blocks().Density();
    step.density += density;
    report.density += density;
    ++step.layers;
    ++report.calls;
    for (size_t i = 0; i < runs.size(); ++i) {
      const PlannedCalls call =
          runs[i]->PlanFor(static_cast<int32_t>(place.layer.value_or(-1)), *place.masks);
      step.plans[i].Add(call);
      report.plans[i].Add(call);
    }
  }
  if (report.calls == 0)
    throw InputError("--layer {}: {} has no masks of it", *flags.layer, report.source);
  for (PlannedStep& step : report.steps) step.density /= static_cast<double>(step.layers);
  report.density /= static_cast<double>(report.calls);
  for (const auto& run : runs) report.balances.push_back(run->Balance());
  SortPlanners(report);
  return report;
}

Json FolderJson(const FolderReport& report, const PlanOptions& options) {
  Json json = {{"source", report.source},
               {"batch", report.lanes.batch},
               {"heads", report.lanes.heads},
               {"block", report.grid.block_tokens},
               {"q_tokens", report.grid.q_tokens},
               {"kv_tokens", report.grid.kv_tokens},
               {"density", report.density},
               {"ranks", options.ranks},
               {"calls", report.calls},
               {"steps", Json::array()},
               {"summary", {{"plans", Json::array()}}}};
  for (const PlannedStep& step : report.steps) {
    Json plans = Json::array();
    for (const PlannedCalls& calls : step.plans) plans.push_back(CallsJson(calls));
    json["steps"].push_back({{"step", step.step ? Json(*step.step) : Json(nullptr)},
                             {"layers", step.layers},
                             {"density", step.density},
                             {"plans", std::move(plans)}});
  }
  for (size_t i = 0; i < report.plans.size(); ++i) {
    Json plan = CallsJson(report.plans[i]);
    plan["plans_made"] = report.balances[i].made;
    plan["plans_kept"] = report.balances[i].kept;
    plan["plan_seconds"] = report.balances[i].seconds;
    json["summary"]["plans"].push_back(std::move(plan));
  }
  json["cost"] = {{"block", options.cost.block}, {"row", options.cost.row}};
  json["cluster"] = ClusterJson(options.cluster);
  return json;
}

}  // namespace equitile
