// `equitile bench plan`: how does the time of planning grow with heads, blocks and ranks?
#include <fmt/format.h>

#include <memory>

#include "apps/bench/bench_output.h"
#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "apps/plan/plan_run.h"
#include "equitile/base/error.h"
#include "equitile/pattern/synthetic_mask.h"
#include "equitile/plan/core/validate.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench plan  # growth in heads, in blocks, in ranks\n"
    "  equitile bench plan --heads 40 --blocks 1184 --ranks 8,64,1024 --planner fractional --json";

struct BenchPlanOptions {
  std::vector<int64_t> heads, blocks, ranks;
  std::vector<std::string> planners = {"ulysses", "dbsp", "fractional"};
  std::string mask = "wan";
  int64_t repeat = 5;
  bool json = false;
};

struct Case {
  int64_t heads, blocks, ranks;
};

// All combinations of what was asked for; without wishes one sweep along each axis.
std::vector<Case> CasesOf(const BenchPlanOptions& options) {
  if (options.heads.empty() && options.blocks.empty() && options.ranks.empty()) {
    return {{10, 512, 8}, {20, 512, 8},  {40, 512, 8},  {40, 128, 8},
            {40, 256, 8}, {40, 1184, 8}, {40, 512, 64}, {40, 512, 512}};
  }
  auto or_default = [](const std::vector<int64_t>& values, int64_t value) {
    return values.empty() ? std::vector<int64_t>{value} : values;
  };
  std::vector<Case> cases;
  for (int64_t heads : or_default(options.heads, 40)) {
    for (int64_t blocks : or_default(options.blocks, 512)) {
      for (int64_t ranks : or_default(options.ranks, 8)) cases.push_back({heads, blocks, ranks});
    }
  }
  return cases;
}

// Layouts with degrees get rings of two where the ranks allow it.
std::string SpecFor(const std::string& planner, int64_t ranks) {
  if (!HasDegrees(ParsePlannerKind(planner))) return planner;
  return ranks % 2 == 0 ? fmt::format("{}:{}x2", planner, ranks / 2)
                        : fmt::format("{}:{}x1", planner, ranks);
}

void RunBench(const BenchPlanOptions& options) {
  Table table({{"planner"},
               {"heads"},
               {"blocks"},
               {"ranks"},
               {"rows"},
               {"plan_seconds"},
               {"ns_per_row"},
               {"rho"}});
  for (const Case& size : CasesOf(options)) {
    const SyntheticSpec spec = ParseSyntheticSpec(
        fmt::format("{},heads={},blocks={}", options.mask, size.heads, size.blocks));
    const LaneMasks masks(MakeSyntheticMask(spec));
    PlanOptions plan_options;
    plan_options.ranks = static_cast<int32_t>(size.ranks);
    for (const std::string& planner : options.planners) {
      const PlannerSpec planner_spec =
          ParsePlanner(SpecFor(planner, size.ranks), plan_options.ranks);
      TimedPlan best = PlanWithClock(planner_spec, masks, plan_options);
      if (const auto violation = Validate(Lower(best.plan, masks), masks.blocks()))
        throw Error("{}: {}", planner, *violation);
      for (int64_t i = 1; i < options.repeat; ++i) {
        best.plan_seconds = std::min(best.plan_seconds,
                                     PlanWithClock(planner_spec, masks, plan_options).plan_seconds);
      }
      const int64_t rows = size.heads * size.blocks;
      table.Add({planner_spec.Text(), size.heads, size.blocks, size.ranks, rows,
                 Cell(best.plan_seconds, 6),
                 Cell(best.plan_seconds * 1e9 / static_cast<double>(rows), 1),
                 Cell(best.score.imbalance.rho, 4)});
    }
  }
  PrintTable(table, options.json);
}

}  // namespace

void RegisterBenchPlan(CLI::App& parent) {
  CLI::App& bench = AddCommand(parent, "plan", "time of planning against heads, blocks and ranks");
  auto options = std::make_shared<BenchPlanOptions>();
  AddNumbers(bench, "--heads", options->heads, {.min = 1, .max = 1 << 16}, "heads of the mask");
  AddNumbers(bench, "--blocks", options->blocks, {.min = 1, .max = 1 << 16},
             "query and key blocks of the mask");
  AddNumbers(bench, "--ranks", options->ranks, {.min = 1, .max = 1 << 20}, "ranks to plan for");
  AddChoices(bench, "--planner", options->planners,
             {"ulysses", "ring", "usp", "dbsp", "dbsp+", "fractional", "dbsp:auto", "auto"},
             "planners; those with degrees get rings of two");
  AddChoice(bench, "--mask", options->mask, {"wan", "uniform", "banded", "one-dense", "headline"},
            "kind of synthetic mask");
  AddNumber(bench, "--repeat", options->repeat, {.min = 1, .max = 1000},
            "the best of this many counts");
  AddJson(bench, options->json);
  bench.footer(kExamples);
  bench.callback([options] { RunBench(*options); });
}

}  // namespace equitile
