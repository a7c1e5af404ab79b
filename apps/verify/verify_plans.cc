#include "apps/verify/verify_plans.h"

#include <fmt/format.h>

#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "apps/plan/plan_request.h"
#include "equitile/base/error.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/verification.h"

namespace equitile {
namespace {

// Small enough to be over in seconds, uneven enough to need every kind of transfer: six heads do
// not divide among five ranks, nor thirteen blocks among anything.
constexpr const char* kDefaultMask = "wan,heads=6,blocks=13,density=0.4";

MaskFile MaskFor(const VerifyPlansRequest& request) {
  PlanFlags flags;
  flags.mask = request.mask;
  flags.synthetic = request.synthetic;
  if (flags.mask.empty() && flags.synthetic.empty()) flags.synthetic = kDefaultMask;
  return MaskOf(flags);
}

Verification::Options OptionsFor(const VerifyPlansRequest& request) {
  Verification::Options options;
  options.head_dim = request.head_dim;
  options.compute = request.compute;
  options.seed = static_cast<uint64_t>(request.seed);
  options.plan.cluster.wire.head_dim = request.head_dim;
  return options;
}

std::string Words(const VerifyCase& result) {
  const std::string verdict = result.same_bits
                                  ? (result.ok ? "same bits" : "NOT THE SAME BITS")
                                  : (result.ok ? "within the bound" : "OUTSIDE OF THE BOUND");
  const std::string size =
      result.same_bits && result.ok ? "" : fmt::format(": off by {:.2g}", result.max_error);
  const std::string bound = result.same_bits ? "" : fmt::format(", {:.2g} may be", result.bound);
  return fmt::format("{:<12} {:>3} rank{} {:<8} {}{}{}", result.planner, result.ranks,
                     result.ranks == 1 ? " " : "s", result.comm, verdict, size, bound);
}

// Prints as it goes; on the process that may.
class Report {
 public:
  Report(bool json, Compute compute) : json_(json), compute_(compute) {}

  void OneRank(const Verification& verification) {
    if (!json_) {
      fmt::print("one rank against the reference: {} rows, {} of what {} may be off: {}\n",
                 verification.RowsChecked(),
                 fmt::format("{:.3f}", verification.OneRank().worst_fraction),
                 ComputeName(compute_), verification.OneRankOk() ? "right" : "WRONG");
    }
    Add({.planner = "reference",
         .ranks = 1,
         .comm = "solo",
         .same_bits = false,
         .ok = verification.OneRankOk(),
         .max_error = verification.OneRank().worst_fraction * verification.OneRank().tolerance,
         .bound = verification.OneRank().tolerance});
  }

  void Case(const VerifyCase& result) {
    if (!json_) {
      fmt::print("{}\n", Words(result));
      std::fflush(stdout);
    }
    Add(result);
  }

  void End() const {
    if (json_) PrintJson({{"ok", failed_ == 0}, {"cases", cases_}});
    if (failed_ > 0) throw Error("verify: {} of {} cases are wrong", failed_, cases_.size());
    if (!json_) fmt::print("{} passed\n", Counted(std::ssize(cases_), "check"));
  }

 private:
  void Add(const VerifyCase& result) {
    failed_ += !result.ok;
    cases_.push_back({{"planner", result.planner},
                      {"ranks", result.ranks},
                      {"comm", result.comm},
                      {"promise", result.same_bits ? "same_bits" : "bound"},
                      {"ok", result.ok},
                      {"max_error", result.max_error},
                      {"bound", result.bound}});
  }

  bool json_;
  Compute compute_;
  Json cases_ = Json::array();
  int64_t failed_ = 0;
};

void VerifyUnderLauncher(const VerifyPlansRequest& request) {
  if (request.ranks_given)
    throw InputError("--ranks: under mpirun its processes are the ranks; leave it out");
  RunOnRanks(request.on, [&](Communicator& comm, int threads) {
    AgreeOnArithmetic(comm);
    const MaskFile mask = MaskFor(request);
    ThreadPool pool(threads);
    const Verification verification(mask.MasksOf(0), OptionsFor(request), pool,
                                    [&comm] { comm.Poll(); });
    Report report(request.json, request.compute);
    const bool prints = comm.rank() == 0;
    if (prints) report.OneRank(verification);
    for (const PlannerSpec& spec : ParsePlanners(request.planners, comm.size())) {
      const VerifyCase result = verification.Check(comm, pool, spec);
      if (prints) report.Case(result);
    }
    comm.Barrier();
    if (prints) report.End();
  });
}

void VerifyHere(const VerifyPlansRequest& request) {
  const MaskFile mask = MaskFor(request);
  // A list of planners is for one number of ranks: degrees are checked before anything is run.
  for (int64_t ranks : request.ranks) ParsePlanners(request.planners, static_cast<int32_t>(ranks));
  ThreadPool pool(ThreadsPerRank(request.on, 1));
  const Verification verification(mask.MasksOf(0), OptionsFor(request), pool);
  Report report(request.json, request.compute);
  report.OneRank(verification);
  for (int64_t ranks : request.ranks) {
    RanksRequest on = request.on;
    on.ranks = ranks;
    for (const PlannerSpec& spec : ParsePlanners(request.planners, static_cast<int32_t>(ranks))) {
      VerifyCase result;
      RunOnRanks(on, [&](Communicator& comm, int threads) {
        ThreadPool rank_pool(threads);
        const VerifyCase mine = verification.Check(comm, rank_pool, spec);
        if (comm.rank() == 0) result = mine;
      });
      report.Case(result);
    }
  }
  report.End();
}

}  // namespace

void AddVerifyPlans(CLI::App& app, VerifyPlansRequest& request) {
  app.add_option("--mask", request.mask, "a mask: .npy, with the .json beside it if there is one")
      ->type_name("FILE");
  app.add_option("--synthetic", request.synthetic,
                 fmt::format("a mask without a file; default: {}", kDefaultMask))
      ->type_name("SPEC");
  AddNumbers(app, "--ranks", request.ranks, {.min = 1, .max = 1024},
             "numbers of ranks, inside this process (not under mpirun)")
      ->each([&request](const std::string&) { request.ranks_given = true; });
  app.add_option(
         "--planner", request.planners,
         "comma list of ulysses, ring, usp:UxR, dbsp:UxR, dbsp+:UxR, fractional, dbsp:auto, auto; "
         "or all")
      ->capture_default_str();
  AddNumber(app, "--head-dim", request.head_dim, {.min = kHeadDimStep, .max = kMaxHeadDim},
            "numbers per token and head");
  AddRanks(app, request.on, RanksFlag::kWatchdogOnly);
  AddJson(app, request.json);
}

void VerifyPlans(const VerifyPlansRequest& request) {
  if (request.head_dim % kHeadDimStep != 0)
    throw InputError("--head-dim {}: must be a multiple of {}", request.head_dim, kHeadDimStep);
  if (UnderLauncher()) {
    VerifyUnderLauncher(request);
  } else {
    VerifyHere(request);
  }
}

}  // namespace equitile
