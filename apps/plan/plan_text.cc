#include "apps/plan/plan_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "apps/cli/table.h"
#include "apps/cli/wrapped_text.h"
#include "equitile/base/duration.h"

namespace equitile {
namespace {

// Whether the same rank computes the same rows at the same price, by whatever name: usp:8x1 is
// ulysses, and auto is what it has chosen.
bool IsSamePlan(const PlanReport& a, const PlanReport& b) {
  if (a.bytes_max != b.bytes_max || a.buffer_bytes_max != b.buffer_bytes_max || a.rho != b.rho) {
    return false;
  }
  if (a.prediction.seconds != b.prediction.seconds) return false;
  const PlanParts &x = a.plan.parts(), &y = b.plan.parts();
  const auto ranks = [](const PlanParts& parts, size_t lane) {
    std::vector<std::pair<int32_t, int32_t>> runs;
    for (const RowRun& run : parts.row_maps[static_cast<size_t>(parts.map_of_lane[lane])]) {
      runs.emplace_back(run.end, run.rank);
    }
    return runs;
  };
  for (size_t lane = 0; lane < x.map_of_lane.size(); ++lane) {
    if (ranks(x, lane) != ranks(y, lane)) return false;
  }
  return true;
}

// Rows of one table, each the places of plans that are the same.
using Groups = std::vector<std::vector<size_t>>;

template <typename Same>
Groups GroupsOf(size_t count, Same same) {
  Groups groups;
  for (size_t i = 0; i < count; ++i) {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& group) { return same(group.front(), i); });
    if (found == groups.end()) {
      groups.push_back({i});
    } else {
      found->push_back(i);
    }
  }
  return groups;
}

// "ulysses = usp:8x1 = 2 more": as many as leave room for the columns, all with --wide.
std::string Joined(const std::vector<std::string>& names, bool wide) {
  constexpr size_t kColumns = 26;
  const auto rest = [&](size_t shown) {
    return shown == names.size() ? "" : fmt::format(" = {} more", names.size() - shown);
  };
  std::string text = names.front();
  for (size_t i = 1; i < names.size(); ++i) {
    const std::string longer = fmt::format("{} = {}", text, names[i]);
    if (!wide && longer.size() + rest(i + 1).size() > kColumns) return text + rest(i);
    text = longer;
  }
  return text;
}

// Who only chose comes behind the choice, which is shown also where it is not there by itself.
std::string Label(const std::vector<const PlanReport*>& plans, bool wide) {
  std::vector<std::string> names, choosers;
  for (const PlanReport* plan : plans) {
    (plan->chosen.empty() ? names : choosers).push_back(plan->planner);
  }
  if (names.empty()) names.push_back(plans.front()->chosen);
  names.insert(names.begin() + 1, choosers.begin(), choosers.end());
  return Joined(names, wide);
}

// In milliseconds, or as people say it where that would be a long number.
Cell Time(double seconds, int decimals) {
  Cell cell(seconds * 1e3, decimals);
  if (seconds >= 120) cell.text = DurationText(seconds);
  return cell;
}

Cell MovedCell(const Moved& moved) {
  if (!moved.q_blocks) return Cell(Json(nullptr), "-");
  return Cell(Json(*moved.q_blocks), fmt::format("{:g}+{:g}", *moved.q_blocks, *moved.kv_blocks));
}

Cell Megabytes(int64_t bytes) { return Cell(static_cast<double>(bytes) * 1e-6, 2); }

Cell MovedCell(const std::optional<double>& blocks) {
  if (!blocks) return Cell(Json(nullptr), "-");
  return Cell(Json(*blocks), fmt::format("{:g}", *blocks));
}

constexpr const char* kRhoMeans = "rho: work of the busiest rank over the mean, 1 is even";

Cell SpeedUp(const std::optional<double>& baseline, double seconds) {
  if (!baseline || seconds <= 0) return Cell(Json(nullptr), "-");
  return Cell(*baseline / seconds, 2);
}

std::optional<double> BaselineSeconds(const std::vector<PlannedCalls>& plans,
                                      const PlanTextOptions& options) {
  for (const PlannedCalls& calls : plans) {
    if (calls.planner == options.baseline) return calls.seconds;
  }
  return std::nullopt;
}

bool HaveSameFigures(PlannedCalls a, const PlannedCalls& b) {
  a.planner = b.planner;
  return a == b;
}

// Rows of a run's tables: planners with the same figures in all steps.
Groups FolderGroups(const FolderReport& report) {
  return GroupsOf(report.plans.size(), [&](size_t a, size_t b) {
    return std::all_of(report.steps.begin(), report.steps.end(), [&](const PlannedStep& step) {
      return HaveSameFigures(step.plans[a], step.plans[b]);
    });
  });
}

std::string FolderLabel(const FolderReport& report, const std::vector<size_t>& group, bool wide) {
  std::vector<std::string> names;
  for (size_t i : group) names.push_back(report.plans[i].planner);
  return Joined(names, wide);
}

std::string TotalsTable(const FolderReport& report, const Groups& groups,
                        const PlanTextOptions& options) {
  const std::optional<double> baseline = BaselineSeconds(report.plans, options);
  Table table({{"planner"},
               {"rho_mean"},
               {"rho_max"},
               {"speed-up", baseline.has_value()},
               {"predicted_ms"},
               {"MB/rank"},
               {"plans_made", options.wide},
               {"kept", options.wide},
               {"moved", options.wide},
               {"planning_ms", options.wide}});
  for (const auto& group : groups) {
    const PlannedCalls& calls = report.plans[group.front()];
    const BalanceReport& balance = report.balances[group.front()];
    table.Add({FolderLabel(report, group, options.wide), Cell(calls.RhoMean(), 4),
               Cell(calls.rho_max, 4), SpeedUp(baseline, calls.seconds), Time(calls.seconds, 3),
               Megabytes(calls.bytes), balance.made, balance.kept, MovedCell(calls.moved),
               Time(balance.seconds, 2)});
  }
  return table.ToText(Terminal::Of(stdout));
}

// "3", or "3-7" for neighbours in which everything is the same.
std::string StepsText(const std::optional<int64_t>& first, const std::optional<int64_t>& last) {
  if (!first) return "any";
  return first == last ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last);
}

// Whether b follows a, with the same figures. Steps that a run skipped have no masks.
bool GoesOn(const PlannedStep& a, const PlannedStep& b) {
  return a.step && b.step && *b.step == *a.step + 1 && a.layers == b.layers &&
         a.density == b.density && a.plans == b.plans;
}

std::string StepsTable(const FolderReport& report, const Groups& groups,
                       const PlanTextOptions& options) {
  const std::vector<PlannedStep>& steps = report.steps;
  const bool compares = BaselineSeconds(report.plans, options).has_value();
  Table table({{"step"},
               {"density"},
               {"planner"},
               {"rho_mean"},
               {"rho_max"},
               {"speed-up", compares},
               {"predicted_ms"},
               {"MB/rank"},
               {"moved", options.wide}});
  for (size_t i = 0; i < steps.size();) {
    size_t end = i + 1;
    while (end < steps.size() && GoesOn(steps[end - 1], steps[end])) ++end;
    const std::optional<double> baseline = BaselineSeconds(steps[i].plans, options);
    for (const auto& group : groups) {
      const bool is_first = &group == &groups.front();
      const PlannedCalls& calls = steps[i].plans[group.front()];
      table.Add({is_first ? StepsText(steps[i].step, steps[end - 1].step) : "",
                 is_first ? Cell(steps[i].density, 3) : Cell(""), calls.planner,
                 Cell(calls.RhoMean(), 4), Cell(calls.rho_max, 4), SpeedUp(baseline, calls.seconds),
                 Time(calls.seconds, 3), Megabytes(calls.bytes), MovedCell(calls.moved)});
    }
    i = end;
  }
  return table.ToText(Terminal::Of(stdout));
}

std::string FolderLegend(const PlanTextOptions& options, bool compares) {
  std::string text = fmt::format("{}; MB/rank: of the busiest rank, all calls added up", kRhoMeans);
  if (compares) text += fmt::format("; speed-up: of the predicted time, over {}", options.baseline);
  text += options.wide
              ? "; plans made, kept: from one step to the next; moved: blocks that leave their "
                "rank; planning ms: what making the plans took here"
              : "; --wide shows more columns";
  return Terminal::Of(stdout).Dim(Wrapped(text)) + "\n";
}

}  // namespace

std::string BaselineOf(const std::vector<PlannerSpec>& specs) {
  for (const PlannerSpec& spec : specs) {
    if (spec.kind == PlannerKind::kUlysses || spec.kind == PlannerKind::kRing ||
        spec.kind == PlannerKind::kUsp) {
      return spec.Text();
    }
  }
  return "";
}

std::string PlansText(const std::vector<PlanReport>& plans, const PlanTextOptions& options) {
  std::optional<double> baseline;
  for (const PlanReport& plan : plans) {
    if (plan.planner == options.baseline) baseline = plan.prediction.seconds;
  }
  const bool wide = options.wide;
  Table table({{"planner"},
               {"rho"},
               {"bound"},
               {"speed-up", baseline.has_value()},
               {"predicted_ms"},
               {"MB/rank"},
               {"moved_q+kv", wide},
               {"buffer_MB", wide},
               {"compute", wide},
               {"exchange", wide},
               {"wait", wide},
               {"planning_ms", wide}});
  for (const auto& group :
       GroupsOf(plans.size(), [&](size_t a, size_t b) { return IsSamePlan(plans[a], plans[b]); })) {
    std::vector<const PlanReport*> same;
    for (size_t i : group) same.push_back(&plans[i]);
    const PlanReport& plan = *same.front();
    const Prediction& time = plan.prediction;
    table.Add({Label(same, wide), Cell(plan.rho, 4), Cell(plan.bound, 4),
               SpeedUp(baseline, time.seconds), Time(time.seconds, 3), Megabytes(plan.bytes_max),
               MovedCell(plan.moved), Megabytes(plan.buffer_bytes_max), Time(time.compute, 3),
               Time(time.exchange, 3), Time(time.wait, 3), Time(plan.plan_seconds, 2)});
  }
  return table.ToText(Terminal::Of(stdout));
}

std::string SummaryText(const std::vector<MaskReport>& layers, const PlanTextOptions& options) {
  const std::vector<PlannerSummary> summaries = SummarizeLayers(layers);
  std::optional<double> baseline;
  for (const PlannerSummary& summary : summaries) {
    if (summary.planner == options.baseline) baseline = summary.predicted_seconds;
  }
  const auto of = [&](const MaskReport& layer, const std::string& planner) -> const PlanReport& {
    return *std::find_if(layer.plans.begin(), layer.plans.end(),
                         [&](const PlanReport& plan) { return plan.planner == planner; });
  };
  const auto same = [&](size_t a, size_t b) {
    return std::all_of(layers.begin(), layers.end(), [&](const MaskReport& layer) {
      return IsSamePlan(of(layer, summaries[a].planner), of(layer, summaries[b].planner));
    });
  };
  Table table({{"planner"},
               {"rho_mean"},
               {"rho_max"},
               {"speed-up", baseline.has_value()},
               {"predicted_ms"},
               {"MB/rank_max"}});
  for (const auto& group : GroupsOf(summaries.size(), same)) {
    std::vector<const PlanReport*> plans;
    for (size_t i : group) plans.push_back(&of(layers.front(), summaries[i].planner));
    const PlannerSummary& summary = summaries[group.front()];
    // A planner that chooses may choose otherwise in every layer.
    const bool alone = plans.size() == 1;
    table.Add({alone ? summary.planner : Label(plans, options.wide), Cell(summary.rho_mean, 4),
               Cell(summary.rho_max, 4), SpeedUp(baseline, summary.predicted_seconds),
               Time(summary.predicted_seconds, 3), Megabytes(summary.bytes_max)});
  }
  return table.ToText(Terminal::Of(stdout));
}

std::string FolderText(const FolderReport& report, const PlanTextOptions& options) {
  const Groups groups = FolderGroups(report);
  const bool compares = BaselineSeconds(report.plans, options).has_value();
  return fmt::format("all {} calls together\n{}{}\nstep by step\n{}", report.calls,
                     TotalsTable(report, groups, options), FolderLegend(options, compares),
                     StepsTable(report, groups, options));
}

std::string PlanLegend(const PlanTextOptions& options) {
  std::string text = fmt::format(
      "{}; bound: the least rho that such a layout can have; MB/rank: most that a rank sends and "
      "receives",
      kRhoMeans);
  if (!options.baseline.empty()) {
    text += fmt::format("; speed-up: of the predicted time, over {}", options.baseline);
  }
  text +=
      options.wide
          ? "; moved q+kv: blocks of queries and of keys that leave the rank of their part of "
            "the sequence; buffer MB: most that a rank holds besides its own; compute, exchange, "
            "wait: ms in which the ranks compute, idle for data, idle for each other; planning "
            "ms: what making the plan took here"
          : "; --wide shows more columns";
  return Terminal::Of(stdout).Dim(Wrapped(text)) + "\n";
}

}  // namespace equitile
