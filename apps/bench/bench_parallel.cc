// `equitile bench parallel`: what attention over ranks costs, planner by planner, beside what the
// cost model said it would.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/parallel_workload.h"
#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/progress.h"
#include "apps/cli/ranks.h"
#include "apps/cli/table.h"
#include "apps/cli/trace_output.h"
#include "apps/plan/plan_request.h"
#include "equitile/base/error.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/calibrate.h"
#include "equitile/io/atomic_write.h"
#include "equitile/kernel/target.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench parallel --ranks 2 --mask mask.npy --planner fractional --machine "
    "machine.json --json\n"
    "  mpirun -n 2 equitile bench parallel --synthetic wan,heads=8,blocks=64 --planner all\n"
    "Seconds run from a barrier to the last output at home, packing included: the median over\n"
    "repeats of the slowest rank. Efficiency is mean compute / seconds. Without --machine rates\n"
    "are measured first.";

struct Request {
  PlanFlags plan;
  int64_t repeat = 5;
  bool overlap = true, json = false;
  std::string wire = "f32", trace;
  RanksRequest on;
};

class ParallelBench {
 public:
  ParallelBench(const Request& request, Communicator& comm, int threads)
      : request_(request),
        comm_(comm),
        pool_(threads),
        compute_(ParseCompute(request.plan.compute)) {
    AgreeOnArithmetic(comm);
    const MaskFile file = MaskOf(request.plan);
    masks_ = file.MasksOf(static_cast<size_t>(request.plan.layer.value_or(0)));
    PlanFlags flags = request.plan;
    flags.ranks = comm.size();
    flags.node_of = comm.NodeOf();
    options_ = OptionsOf(flags, file.layers.front().grid());
    if (flags.machine.empty() && !flags.kernel_gflops) {
      const Machine machine = Calibrate(comm, pool_,
                                        {.head_dims = {flags.head_dim},
                                         .blocks = {masks_.blocks().grid().block_tokens},
                                         .computes = {compute_},
                                         .links = flags.link.empty()});
      ApplyMachine(machine, masks_.blocks().grid(), options_, ComputeName(compute_));
    }
    options_.cluster.wire = WireFormatOf(flags.head_dim, ParseDType(request.wire), compute_);
  }

  Table Run() {
    ExecutorOptions exec{.wire = ParseDType(request_.wire),
                         .overlap = request_.overlap,
                         .modelled_seconds = {},
                         .modelled_pack_seconds_per_byte = 0};
    if (comm_.models_compute()) {
      exec.modelled_seconds = [this](const Work& work) {
        return static_cast<double>(work.blocks) *
                   options_.cluster.BlockSeconds(masks_.blocks().grid()) +
               static_cast<double>(work.rows) * options_.cluster.row_seconds;
      };
      exec.modelled_pack_seconds_per_byte = options_.cluster.pack_seconds_per_byte;
    }
    Executor executor(comm_, pool_, exec);
    const ParallelWorkload workload(masks_, options_, request_.plan.head_dim, comm_.rank(),
                                    exec.wire, compute_, pool_);
    if (!request_.trace.empty()) trace_ = std::make_unique<Trace>(comm_);
    std::vector<Contender> contenders;
    const std::vector<PlannerSpec> specs = ParsePlanners(request_.plan.planners, comm_.size());
    const auto runs = static_cast<int64_t>(specs.size()) * (request_.repeat + 1);
    std::optional<Progress> progress;
    if (comm_.rank() == 0 && !comm_.simulated()) progress.emplace("bench parallel");
    int64_t done = 0;
    const auto say = [&](const PlannerSpec& spec) {
      if (progress) progress->Report(done++, runs, spec.Text());
    };
    for (const PlannerSpec& spec : specs) {
      say(spec);
      contenders.push_back(Prepare(spec, executor));
      RunOnce(executor, *contenders.back().part, workload);  // memory is touched for the first time
      if (!comm_.models_compute()) workload.Check(comm_, *contenders.back().part, spec.Text());
    }
    // In turns: whatever changes on the machine meanwhile meets all of them.
    for (int64_t i = 0; i < request_.repeat; ++i) {
      for (Contender& contender : contenders) {
        say(contender.spec);
        contender.repeats.push_back(RunOnce(executor, *contender.part, workload));
      }
    }
    progress.reset();
    for (Contender& contender : contenders) Report(contender);
    if (trace_) WriteTrace(request_.trace, comm_, *trace_);
    return std::move(table_);
  }

  const PlanOptions& options() const { return options_; }

 private:
  // Figures of one repeat, over all ranks.
  struct Repeat {
    double seconds = 0, compute_max = 0, compute_mean = 0, wait_mean = 0, exposed = 0, pack = 0;
    int64_t bytes_max = 0;
  };

  double Reduced(double value, Reduce op) {
    comm_.AllReduce(std::span(&value, 1), op);
    return value;
  }
  double Mean(double value) { return Reduced(value, Reduce::kSum) / comm_.size(); }

  Repeat RunOnce(Executor& executor, const Itinerary& part, const ParallelWorkload& workload) {
    comm_.Barrier();
    const RunStats stats = executor.Run(part, workload.Call());
    const double exposed = ExposedSeconds(comm_, executor.LastRun());
    if (trace_) trace_->Add(executor.LastRun(), -1, 0);
    Repeat repeat;
    repeat.seconds = Reduced(stats.seconds, Reduce::kMax);
    repeat.compute_max = Reduced(stats.compute_seconds, Reduce::kMax);
    repeat.compute_mean = Mean(stats.compute_seconds);
    repeat.exposed = Mean(exposed);
    repeat.pack = Mean(stats.pack_seconds);
    repeat.wait_mean =
        std::max(0.0, repeat.seconds - repeat.compute_mean - repeat.exposed - repeat.pack);
    repeat.bytes_max = static_cast<int64_t>(
        Reduced(static_cast<double>(stats.bytes_sent + stats.bytes_received), Reduce::kMax));
    return repeat;
  }

  // One planner on its way through all repeats.
  struct Contender {
    PlannerSpec spec;
    MadePlan made;
    std::shared_ptr<const Itinerary> part;
    double plan_seconds = 0, lower_seconds = 0;
    std::vector<Repeat> repeats;
  };

  Contender Prepare(const PlannerSpec& spec, Executor& executor) {
    auto plan = [&] {
      RowCounts rows(masks_.blocks());
      return MakePlan(spec, masks_, rows, options_);
    };
    plan();  // code and memory are touched for the first time, as before the runs
    comm_.Barrier();
    const double begin = comm_.Now();
    Contender contender{.spec = spec,
                        .made = plan(),
                        .part = nullptr,
                        .plan_seconds = 0,
                        .lower_seconds = 0,
                        .repeats = {}};
    const double planned = comm_.Now();
    comm_.Barrier();  // hashes are compared next: nobody's time is another's planning
    const double lowering = comm_.Now();
    contender.part =
        executor.Prepare(contender.made.plan, masks_, request_.plan.head_dim, compute_);
    const double lowered = comm_.Now();
    if (trace_)
      trace_->Add(RunEvent{.kind = RunEvent::Kind::kPlan, .begin = begin, .end = lowered}, -1, 0);
    contender.plan_seconds = Reduced(planned - begin, Reduce::kMax);
    contender.lower_seconds = Reduced(lowered - lowering, Reduce::kMax);
    return contender;
  }

  void Report(Contender& contender) {
    std::vector<Repeat>& repeats = contender.repeats;
    std::sort(repeats.begin(), repeats.end(),
              [](const Repeat& a, const Repeat& b) { return a.seconds < b.seconds; });
    RowCounts rows(masks_.blocks());
    const Score score = ScorePlan(contender.made.plan, masks_, rows, options_.cost,
                                  options_.cluster, std::move(contender.made.work));
    const Prediction prediction =
        Simulate(contender.part->program, *contender.part->homes, score.work, options_.cluster);
    AddRow(contender.spec, repeats[(repeats.size() - 1) / 2], contender.plan_seconds,
           contender.lower_seconds, score, prediction);
  }

  void AddRow(const PlannerSpec& spec, const Repeat& repeat, double plan_seconds,
              double lower_seconds, const Score& score, const Prediction& prediction) {
    auto seconds = [](double s) { return Cell(s, 5); };
    table_.Add({spec.Text(), seconds(repeat.seconds), seconds(repeat.compute_max),
                seconds(repeat.compute_mean), seconds(repeat.wait_mean), seconds(repeat.exposed),
                seconds(repeat.pack), seconds(plan_seconds), seconds(lower_seconds),
                repeat.bytes_max, Cell(score.imbalance.rho, 4), seconds(prediction.seconds),
                Cell(repeat.compute_mean / repeat.seconds, 3)});
  }

  const Request& request_;
  Communicator& comm_;
  ThreadPool pool_;
  Compute compute_;
  LaneMasks masks_;
  PlanOptions options_;
  std::unique_ptr<Trace> trace_;
  Table table_{{{"planner"},
                {"seconds"},
                {"compute_max"},
                {"compute_mean"},
                {"wait_mean"},
                {"exchange_exposed"},
                {"pack_seconds"},
                {"plan_seconds"},
                {"lower_seconds"},
                {"bytes_max"},
                {"rho"},
                {"predicted_seconds"},
                {"efficiency"}}};
};

std::string Platform(const Communicator& comm) {
  const char* platform = std::getenv("EQUITILE_SIMULATED_PLATFORM");  // set by scripts/cluster-sim
  return platform != nullptr ? platform : std::string(comm.name());
}

void Run(const Request& request) {
  if (request.plan.head_dim % kHeadDimStep != 0 || request.plan.head_dim > kMaxHeadDim)
    throw InputError("--head-dim {}: must be a multiple of {} up to {}", request.plan.head_dim,
                     kHeadDimStep, kMaxHeadDim);
  if (request.plan.ranks)
    throw InputError("--for-ranks: this runs on ranks; use --ranks or mpirun");
  if (request.plan.compute != "f32" && request.wire != "f32")
    throw InputError("--wire {}: attention computes in {}, and so tokens travel; leave --wire away",
                     request.wire, request.plan.compute);
  if (!request.trace.empty() && IsFirstProcess()) CheckWritable(request.trace);
  RunOnRanks(request.on, [&](Communicator& comm, int threads) {
    ParallelBench bench(request, comm, threads);
    const Table table = bench.Run();
    if (comm.rank() != 0) return;
    const std::string target(ActiveTargetName());
    if (request.json) {
      Json plans = table.ToJson();
      if (!plans.is_array()) plans = Json::array({plans});
      PrintJson({{"ranks", comm.size()},
                 {"simulated", comm.simulated()},
                 {"platform", Platform(comm)},
                 {"threads", threads},
                 {"target", target},
                 {"compute", request.plan.compute},
                 {"plans", plans}});
    } else {
      fmt::print("{} ranks ({}), {} thread{} each, {}\n{}", comm.size(), Platform(comm), threads,
                 threads == 1 ? "" : "s", target, table.ToText(Terminal::Of(stdout)));
    }
  });
}

}  // namespace

void RegisterBenchParallel(CLI::App& parent) {
  CLI::App& app =
      AddCommand(parent, "parallel",
                 "attention over ranks: seconds, compute, waits and bytes of each planner");
  auto request = std::make_shared<Request>();
  request->plan.planners = "fractional,auto";
  AddPlanFlags(app, request->plan);
  AddNumber(app, "--repeat", request->repeat, {.min = 1, .max = 10000}, "runs of each planner");
  app.add_flag("--overlap,!--no-overlap", request->overlap,
               "exchange while computing (default); without, to see what it is worth");
  AddChoice(app, "--wire", request->wire, {"f32", "bf16"}, "numbers between ranks");
  AddTrace(app, request->trace);
  AddRanks(app, request->on);
  AddJson(app, request->json);
  app.footer(kExamples);
  app.callback([request] { Run(*request); });
}

}  // namespace equitile
