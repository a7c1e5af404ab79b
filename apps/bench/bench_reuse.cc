// `equitile bench reuse`: how often a changing mask is worth a new plan, and what that leaves of
// the balance.
#include <memory>

#include "apps/bench/bench_output.h"
#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "apps/plan/plan_request.h"
#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/sparsity/balance/balancer.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench reuse --mask steps.npy --for-ranks 8 --planner fractional\n"
    "  equitile bench reuse --mask steps.npy --for-ranks 8 --reuse-threshold 1.10 --json\n"
    "  equitile bench reuse --synthetic profile,file=wan21_14b.density.npy,blocks=256 --layer 20 "
    "--for-ranks 8\n"
    "The mask's layers are taken as the steps of one layer, one after the other, as in generate;\n"
    "of a profile, all steps of one layer.\n"
    "Attention seconds are the cost model's; planning seconds are measured.";

struct Request {
  PlanFlags plan;
  std::optional<double> threshold;
  bool json = false;
};

void Run(const Request& request) {
  const MaskFile file = StepsOf(request.plan);
  const PlanOptions options = OptionsOf(request.plan, file.layers.front().grid());
  const std::vector<PlannerSpec> specs = ParsePlanners(request.plan.planners, options.ranks);
  Table table({{"planner"},
               {"steps"},
               {"made"},
               {"kept"},
               {"rho_before"},
               {"rho_after"},
               {"attention_seconds"},
               {"plan_seconds"}});
  for (const PlannerSpec& spec : specs) {
    SoloCommunicator comm;
    Balancer balancer(
        {.planner = spec, .plan = options, .rule = {.threshold = request.threshold.value_or(0)}},
        ClockOf(comm));
    double attention = 0;
    for (size_t step = 0; step < file.layers.size(); ++step) {
      const LaneMasks masks = file.MasksOf(step);
      const BlockMask& mask = masks.blocks();
      const Plan& plan = *balancer.PlanFor(0, masks).plan;
      RowCounts rows(mask);
      attention += Simulate(Lower(plan, masks), HomeMap(plan.problem()),
                            CountStageWork(plan, mask, rows.Blocks()), options.cluster)
                       .seconds;
    }
    const BalanceReport report = balancer.Report();
    table.Add({spec.Text(), std::ssize(file.layers), report.made, report.kept,
               Cell(report.rho_before, 4), Cell(report.rho_after, 4), Cell(attention, 5),
               Cell(report.seconds, 5)});
  }
  PrintTable(table, request.json);
}

}  // namespace

void RegisterBenchReuse(CLI::App& parent) {
  CLI::App& app = AddCommand(parent, "reuse", "plans kept and made anew over the steps of a mask");
  auto request = std::make_shared<Request>();
  request->plan.planners = "fractional";
  AddPlanFlags(app, request->plan);
  AddNumber(app, "--reuse-threshold", request->threshold, {.min = 1, .max = 1e6},
            "plan anew when rho reaches this; default: when it saves more than planning costs, "
            "1.10 for dbsp:auto");
  AddJson(app, request->json);
  app.footer(kExamples);
  app.callback([request] { Run(*request); });
}

}  // namespace equitile
