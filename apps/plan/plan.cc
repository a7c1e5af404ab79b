// `equitile plan`: a mask and a number of ranks in, layouts compared out.
#include <fmt/format.h>

#include <memory>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "apps/cli/wrapped_text.h"
#include "apps/plan/plan_folder.h"
#include "apps/plan/plan_html.h"
#include "apps/plan/plan_request.h"
#include "apps/plan/plan_run.h"
#include "apps/plan/plan_text.h"
#include "equitile/base/error.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/plan_file.h"
#include "equitile/pattern/mask_hash.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile plan --synthetic wan,heads=40,blocks=512 --for-ranks 8 --planner all\n"
    "  equitile plan --mask mask.npy --for-ranks 8 --planner ulysses,dbsp:4x2,fractional --json\n"
    "  equitile plan --mask mask.npy --for-ranks 6 --planner auto --link 10Gb/s,20us --out "
    "plan.json\n"
    "  equitile plan --mask mask.npy --for-ranks 8 --node-size 4 --node-link 400Gb/s,1us --speeds "
    "1,1,1,1,1,1,1,0.5\n"
    "  equitile plan --mask mask.npy --for-ranks 8 --html report.html\n"
    "  equitile plan --mask masks --for-ranks 8  # all that `generate --export-masks masks` wrote";

struct PlanCommand {
  PlanFlags flags;
  bool json = false, details = false, wide = false;
  std::string out, html;
  std::optional<double> reuse_threshold;
};

void PrintHead(const std::string& source, const Lanes& lanes, const BlockGrid& grid, double density,
               const PlanOptions& options, const std::string& compute) {
  std::string heads = fmt::format("{} heads", lanes.heads);
  if (lanes.batch > 1) heads = fmt::format("batch {} x {}", lanes.batch, heads);
  fmt::print("{}\n", Wrapped(fmt::format("{}: {}, {} x {} blocks of {}, density {:.3f}; {} ranks",
                                         source, heads, grid.QBlocks(), grid.KvBlocks(),
                                         grid.block_tokens, density, options.ranks)));
  const Cluster& cluster = options.cluster;
  std::string rates =
      fmt::format("{:g} GFLOP/s per rank, link {}", cluster.gflops, LinkText(cluster.link));
  if (!cluster.node_of.empty())
    rates += fmt::format(", nodes {} with {}", fmt::join(cluster.node_of, ","),
                         LinkText(cluster.node_link));
  if (cluster.HasCables())
    rates += fmt::format(", cable {:g}Gb/s", cluster.cable_bytes_per_second * 8e-9);
  if (!cluster.speeds.empty())
    rates += fmt::format(", speeds {:g}", fmt::join(cluster.speeds, ","));
  fmt::print("{}\n", Wrapped(fmt::format("{}, {}, head_dim {}; cost {} per block, {} per row",
                                         rates, compute, cluster.wire.head_dim, options.cost.block,
                                         options.cost.row)));
}

void Print(const PlanCommand& command, const std::vector<MaskReport>& layers,
           const PlanOptions& options, const std::vector<PlannerSpec>& specs) {
  const bool layered = layers.size() > 1;
  if (command.json) {
    PrintJson(layered ? LayersReportJson(layers, options, command.details)
                      : MaskReportJson(layers.front(), options, command.details));
    return;
  }
  const BlockMask& first = layers.front().mask;
  PrintHead(layers.front().source, first.lanes(), first.grid(), first.Density(), options,
            command.flags.compute);
  const PlanTextOptions text{.wide = command.wide, .baseline = BaselineOf(specs)};
  if (layered) fmt::print("all layers together\n{}", SummaryText(layers, text));
  for (const MaskReport& layer : layers) {
    if (layered) fmt::print("\nlayer {}\n", *layer.layer);
    fmt::print("{}", PlansText(layer.plans, text));
    if (&layer == &layers.front()) fmt::print("{}", PlanLegend(text));
    fmt::print("{}\n", Wrapped(WhyBest(layer.plans, 0)));
  }
}

void RunFolder(const PlanCommand& command) {
  if (!command.out.empty() || !command.html.empty() || command.details)
    throw InputError("--out, --html and --details are for one mask; {} is a folder",
                     command.flags.mask);
  MaskTable masks = MaskTable::Read(command.flags.mask);
  if (command.flags.batch) masks = masks.ForBatch(*command.flags.batch);
  const PlanOptions options = OptionsOf(command.flags, masks.First().blocks().grid());
  const FolderReport report =
      PlanFolder(command.flags, masks, {.threshold = command.reuse_threshold.value_or(0)}, options);
  if (command.json) return PrintJson(FolderJson(report, options));
  PrintHead(report.source, report.lanes, report.grid, report.density, options,
            command.flags.compute);
  const auto specs = ParsePlanners(command.flags.planners, options.ranks);
  fmt::print("{}", FolderText(report, {.wide = command.wide, .baseline = BaselineOf(specs)}));
}

void Run(const PlanCommand& command) {
  if (IsFolder(command.flags)) return RunFolder(command);
  if (command.reuse_threshold)
    throw InputError("--reuse-threshold: is for a folder of masks; plans of one are not reused");
  const MaskFile mask = MaskOf(command.flags);
  const PlanOptions options = OptionsOf(command.flags, mask.layers.front().grid());
  const std::vector<PlannerSpec> specs = ParsePlanners(command.flags.planners, options.ranks);
  const bool one = command.flags.layer || mask.layers.size() == 1;
  if (!one && !command.out.empty())
    throw InputError("--out: a plan is for one layer; choose it with --layer");
  for (const std::string& path : {command.out, command.html}) {
    if (!path.empty()) CheckWritable(path);
  }

  std::vector<MaskReport> layers;
  for (int64_t i = 0; i < std::ssize(mask.layers); ++i) {
    if (command.flags.layer && *command.flags.layer != i) continue;
    const BlockMask& layer = mask.layers[static_cast<size_t>(i)];
    layers.push_back(
        {.source = SourceOf(command.flags),
         .layer = mask.has_layer_axis ? std::optional(i) : std::nullopt,
         .mask = layer,
         .plans = ReportPlanners(specs, mask.MasksOf(static_cast<size_t>(i)), options)});
  }
  if (!command.out.empty()) {
    const PlanReport& best = layers.front().plans.front();
    WritePlanFile(command.out, MakePlanFile(best.plan, HashMask(layers.front().mask), options.cost,
                                            best.work_per_rank));
  }
  if (!command.html.empty()) WriteTextFile(command.html, PlanPage(layers, options));
  Print(command, layers, options, specs);
}

}  // namespace

void RegisterPlan(CLI::App& parent) {
  CLI::App& plan = AddCommand(
      parent, "plan", "compare layouts of a mask over ranks: balance, bytes, predicted time");
  auto command = std::make_shared<PlanCommand>();
  AddPlanFlags(plan, command->flags);
  AddJson(plan, command->json);
  plan.add_flag("--wide", command->wide,
                "all columns: moved blocks, buffers, parts of the predicted time, planning");
  plan.add_flag("--details", command->details, "with --json: owners of rows, columns and heads");
  plan.add_option("--out", command->out, "write the best plan here, for `equitile inspect`")
      ->type_name("FILE");
  plan.add_option("--html", command->html,
                  "write a page here: work per rank, who computes what, timelines")
      ->type_name("FILE");
  AddNumber(plan, "--reuse-threshold", command->reuse_threshold, {.min = 1, .max = 1e6},
            "for a folder: plan a layer anew when its imbalance reaches this; default: when it "
            "saves time");
  plan.footer(kExamples);
  plan.callback([command] { Run(*command); });
}

}  // namespace equitile
