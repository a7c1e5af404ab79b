#include "equitile/sparsity/balance/balancer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "equitile/comm/threads/run_ranks.h"
#include "equitile/pattern/synthetic_mask.h"

namespace equitile {
namespace {

constexpr int32_t kRanks = 8;
constexpr int64_t kSteps = 50;

PlanOptions OptionsFor(int32_t ranks) {
  PlanOptions options;
  options.ranks = ranks;
  return options;
}

// A clock on which every plan takes the same time: it goes on by that at each look.
BalancerClock SteadyClock(double planning_seconds) {
  return {.now = [planning_seconds, time = 0.0]() mutable { return time += planning_seconds; },
          .of_rank_0 = [](double value) { return value; }};
}

PlannerSpec Fractional() { return ParsePlanner("fractional", kRanks); }

// Seconds of an even share.
double EvenSeconds(const BlockMask& mask) {
  return static_cast<double>(mask.Kept()) * Cluster().BlockSeconds(mask.grid()) / kRanks;
}

double Rho(const Plan& plan, const BlockMask& mask) { return Rescore(plan, mask, {}).rho; }

std::vector<BlockMask> Drift(double per_step) {
  const SyntheticSpec spec = ParseSyntheticSpec("wan,heads=24,blocks=64");
  std::vector<BlockMask> masks;
  for (int64_t step = 0; step < kSteps; ++step)
    masks.push_back(MakeDriftingMask(spec, per_step * static_cast<double>(step)));
  return masks;
}

// Predicted seconds of all steps when a plan is made at the steps that `plans_at` says; plans: of
// every step.
double SecondsOf(const std::vector<BlockMask>& masks, const std::vector<Plan>& plans,
                 double planning_seconds, const std::function<bool(int64_t step)>& plans_at) {
  double seconds = 0;
  const Plan* plan = nullptr;
  for (int64_t step = 0; step < kSteps; ++step) {
    const BlockMask& mask = masks[static_cast<size_t>(step)];
    if (plans_at(step)) {
      plan = &plans[static_cast<size_t>(step)];
      seconds += planning_seconds;
    }
    seconds += Rho(*plan, mask) * EvenSeconds(mask);
  }
  return seconds;
}

struct Habits {
  double never, sometimes, always;  // predicted seconds; sometimes: the best of 3 to 20 plans
  double Best() const { return std::min({never, sometimes, always}); }
};

Habits MeasureHabits(const std::vector<BlockMask>& masks, double planning_seconds) {
  std::vector<Plan> plans;
  for (const BlockMask& mask : masks)
    plans.push_back(MakePlan("fractional", mask, OptionsFor(kRanks)));
  Habits habits{
      .never = SecondsOf(masks, plans, planning_seconds, [](int64_t step) { return step == 0; }),
      .sometimes = std::numeric_limits<double>::infinity(),
      .always = SecondsOf(masks, plans, planning_seconds, [](int64_t) { return true; })};
  for (int64_t period = 3; period <= 17; ++period) {
    habits.sometimes =
        std::min(habits.sometimes, SecondsOf(masks, plans, planning_seconds,
                                             [&](int64_t step) { return step % period == 0; }));
  }
  return habits;
}

struct Outcome {
  double seconds = 0;
  BalanceReport report;
};

Outcome Balance(const std::vector<BlockMask>& masks, double planning_seconds,
                const ReplanRule& rule = {}) {
  Balancer balancer({.planner = Fractional(), .plan = OptionsFor(kRanks), .rule = rule},
                    SteadyClock(planning_seconds));
  Outcome outcome;
  for (const BlockMask& mask : masks)
    outcome.seconds += Rho(*balancer.PlanFor(0, mask).plan, mask) * EvenSeconds(mask);
  outcome.report = balancer.Report();
  outcome.seconds += static_cast<double>(outcome.report.made) * planning_seconds;
  return outcome;
}

// Planning takes a tenth of a layer's attention, so that habits differ by percents.
TEST(Balancer, WithinOnePercentOfTheBestHabit) {
  struct Case {
    double drift_per_step;
    double Habits::*best;
    int64_t least_made, most_made;
  };
  for (const Case& c : {Case{0.00005, &Habits::never, 1, 1}, Case{0.005, &Habits::sometimes, 3, 20},
                        Case{0.5, &Habits::always, kSteps, kSteps}}) {
    SCOPED_TRACE(c.drift_per_step);
    const std::vector<BlockMask> masks = Drift(c.drift_per_step);
    const double planning = 0.1 * EvenSeconds(masks.front());
    const Habits habits = MeasureHabits(masks, planning);
    EXPECT_EQ(habits.*c.best, habits.Best());
    const Outcome balanced = Balance(masks, planning);
    EXPECT_LE(balanced.seconds, 1.01 * habits.Best());
    EXPECT_GE(balanced.report.made, c.least_made);
    EXPECT_LE(balanced.report.made, c.most_made);
    EXPECT_EQ(balanced.report.made + balanced.report.kept, kSteps);
    EXPECT_LT(balanced.report.rho_after, balanced.report.rho_before);
  }
}

TEST(Balancer, ThresholdPlansWheneverTheRatioReachesIt) {
  const std::vector<BlockMask> masks = Drift(0.02);
  int64_t made_before = kSteps + 1;
  for (double threshold : {1.02, 1.10, 1.30}) {
    Balancer balancer(
        {.planner = Fractional(), .plan = OptionsFor(kRanks), .rule = {.threshold = threshold}},
        SteadyClock(1e9));  // the price does not matter
    for (const BlockMask& mask : masks)
      EXPECT_LT(Rho(*balancer.PlanFor(0, mask).plan, mask), threshold);
    const BalanceReport report = balancer.Report();
    EXPECT_LT(report.made, made_before);
    EXPECT_GT(report.made, 1);
    made_before = report.made;
  }
}

TEST(Balancer, LayersHaveTheirOwnPlansAndShareThoseOfEqualMasks) {
  const BlockMask one = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=7,blocks=33"));
  const BlockMask other = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=7,blocks=33,seed=9"));
  Balancer balancer(
      {.planner = ParsePlanner("auto", kRanks), .plan = OptionsFor(kRanks), .rule = {}},
      SteadyClock(1e-3));
  const Plan first = *balancer.PlanFor(0, one).plan;
  EXPECT_EQ(*balancer.PlanFor(1, one).plan, first);
  EXPECT_NE(*balancer.PlanFor(2, other).plan, first);
  EXPECT_EQ(*balancer.PlanFor(0, one).plan, first);
  const BalanceReport report = balancer.Report();
  EXPECT_EQ(report.made, 2);
  EXPECT_EQ(report.kept, 2);
  ASSERT_EQ(report.layers.size(), 3u);
  EXPECT_EQ(report.layers.at(0).planner, first.planner().Text());
  EXPECT_EQ(report.layers.at(1).made, 0);
  EXPECT_GT(report.seconds, 0);
}

TEST(Balancer, AMaskOfAnotherShapeGetsItsOwnPlan) {
  Balancer balancer({.planner = Fractional(), .plan = OptionsFor(kRanks), .rule = {}},
                    SteadyClock(1e9));
  for (const char* spec : {"wan,heads=3,blocks=17", "uniform,heads=1,blocks=1",
                           "wan,heads=3,blocks=18", "uniform,heads=2,blocks=5,density=0"}) {
    const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec(spec));
    const Plan& plan = *balancer.PlanFor(0, mask).plan;
    EXPECT_EQ(plan.problem().grid, mask.grid());
    EXPECT_EQ(plan.problem().lanes, mask.lanes());
  }
  EXPECT_EQ(balancer.Report().made, 4);
}

// Equally even at every density, whoever computes what: rho says nothing about the change.
std::vector<BlockMask> Thinning() {
  std::vector<BlockMask> masks;
  for (const double density : {0.9, 0.88, 0.05, 0.048, 0.9})
    masks.push_back(MakeSyntheticMask(
        ParseSyntheticSpec(fmt::format("uniform,heads=16,blocks=128,density={}", density))));
  return masks;
}

struct Thinned {
  std::vector<std::string> planners;
  std::vector<double> rho_before;
  BalanceReport report;
};

Thinned RunThinning(const char* planner, PlanOptions options, const ReplanRule& rule,
                    double planning_seconds) {
  options.ranks = 4;
  Balancer balancer({.planner = ParsePlanner(planner, 4), .plan = options, .rule = rule},
                    SteadyClock(planning_seconds));
  Thinned run;
  for (const BlockMask& mask : Thinning()) {
    const BalancedPlan balanced = balancer.PlanFor(0, mask);
    run.planners.push_back(balanced.plan->planner().Text());
    run.rho_before.push_back(balanced.rho_before);
  }
  run.report = balancer.Report();
  return run;
}

// A ring while there is enough to compute behind its passes, Ulysses when there is not.
TEST(Balancer, ADensityThatChangesAtEqualRatioSwitchesTheLayout) {
  PlanOptions options;
  options.cluster.link = {.latency_seconds = 2e-6, .bytes_per_second = 3e8};
  const Thinned run = RunThinning("dbsp:auto", options, {}, 1e9);
  EXPECT_EQ(run.planners,
            (std::vector<std::string>{"dbsp:1x4", "dbsp:1x4", "dbsp:4x1", "dbsp:4x1", "dbsp:1x4"}));
  for (const double rho : run.rho_before) EXPECT_LT(rho, 1.10);
  EXPECT_EQ(run.report.made, 3);

  // The same by time, where looking is cheap; and no looking where it is dear.
  options.reproducible = false;
  const double even = EvenSeconds(Thinning()[2]);
  const Thinned cheap = RunThinning("auto", options, {}, 0.001 * even);
  EXPECT_NE(cheap.planners[2], cheap.planners[1]);
  EXPECT_EQ(cheap.planners[1], cheap.planners[0]);
  EXPECT_EQ(cheap.planners[4], cheap.planners[0]);
  const Thinned dear = RunThinning("auto", options, {}, 1000 * even);
  EXPECT_EQ(dear.report.made, 1);

  // A planner that has nothing to choose keeps its plan.
  EXPECT_EQ(RunThinning("dbsp:2x2", options, {.threshold = 1.10}, 1e9).report.made, 1);
}

// Where only the balance has slipped, the layout that was chosen stays, and is even again.
TEST(Balancer, AnUnevenPlanIsMadeAnewInItsOwnLayout) {
  Balancer balancer({.planner = ParsePlanner("auto", kRanks), .plan = OptionsFor(kRanks)},
                    SteadyClock(1e-9));
  std::string layout;
  for (const BlockMask& mask : Drift(0.1)) {
    const Plan& plan = *balancer.PlanFor(0, mask).plan;
    if (layout.empty()) layout = plan.planner().Text();
    EXPECT_EQ(plan.planner().Text(), layout);
    EXPECT_LT(Rho(plan, mask), 1.02);
  }
  EXPECT_GT(balancer.Report().made, kSteps / 2);
}

// Its rule is the paper's unless another is given.
TEST(Balancer, DbspAutoKeepsItsPlanBelowThePapersThreshold) {
  const std::vector<BlockMask> masks = Drift(0.02);
  const auto made = [&](const ReplanRule& rule) {
    Balancer balancer(
        {.planner = ParsePlanner("dbsp:auto", kRanks), .plan = OptionsFor(kRanks), .rule = rule},
        SteadyClock(1e9));  // the price does not matter
    for (const BlockMask& mask : masks) balancer.PlanFor(0, mask);
    return balancer.Report().made;
  };
  EXPECT_GT(made({}), 1);
  EXPECT_EQ(made({}), made({.threshold = 1.10}));
  EXPECT_LT(made({.threshold = 1.5}), made({}));
}

// Plans of two layers over a drift, the second of which begins with the first one's masks;
// `repeats` is what another run decided, and where `interrupted` a step goes on in another
// Balancer.
struct Replay {
  std::vector<uint64_t> hashes;
  std::string decided;
};

Replay RunDrift(double planning_seconds, std::optional<PlanDecisions> repeats = std::nullopt,
                std::optional<size_t> interrupted = std::nullopt) {
  const BalancerOptions options{.planner = ParsePlanner("dbsp:auto", kRanks),
                                .plan = OptionsFor(kRanks),
                                .rule = {.threshold = planning_seconds > 1 ? 1.3 : 1.02},
                                .bits_depend_on_plans = true};
  static const std::vector<BlockMask> masks = Drift(0.02);
  auto balancer = std::make_unique<Balancer>(options, SteadyClock(planning_seconds));
  balancer->Begin(std::move(repeats));
  Replay run;
  for (size_t step = 0; step < 12; ++step) {
    if (step == interrupted) {
      const SourceState state = balancer->State();
      balancer = std::make_unique<Balancer>(options, SteadyClock(planning_seconds));
      balancer->Restore(state);
    }
    for (const int32_t layer : {0, 1}) {
      const BlockMask& mask = masks[step * static_cast<size_t>(1 + layer)];
      run.hashes.push_back(balancer->PlanFor(layer, mask).plan->hash());
    }
  }
  run.decided = balancer->decisions().Text();
  return run;
}

// Clocks, and here thresholds for the same effect, decide what is kept; a record decides over them.
TEST(Balancer, RepeatsWhatWasDecided) {
  const Replay patient = RunDrift(1e9), eager = RunDrift(0);
  EXPECT_NE(patient.hashes, eager.hashes);
  for (const Replay& first : {patient, eager}) {
    for (const double clock : {0.0, 1e9}) {
      const auto record = PlanDecisions::Parse(first.decided, kRanks);
      const Replay again = RunDrift(clock, record);
      EXPECT_EQ(again.hashes, first.hashes);
      EXPECT_EQ(again.decided, first.decided);
      EXPECT_EQ(RunDrift(clock, record, 7).hashes, first.hashes);
    }
  }
  for (const size_t step : {1, 5, 11}) {
    EXPECT_EQ(RunDrift(0, std::nullopt, step).hashes, eager.hashes);
    EXPECT_EQ(RunDrift(1e9, std::nullopt, step).hashes, patient.hashes);
  }
}

TEST(Balancer, VideosShareNoPlansWhereBitsDependOnThem) {
  const BlockMask mask = Drift(0.02).front();
  for (const bool matters : {true, false}) {
    Balancer balancer({.planner = ParsePlanner("ring", kRanks),
                       .plan = OptionsFor(kRanks),
                       .rule = {},
                       .bits_depend_on_plans = matters},
                      SteadyClock(1));
    balancer.PlanFor(0, mask);
    balancer.Begin();
    EXPECT_EQ(balancer.PlanFor(0, mask).made, matters);
    EXPECT_EQ(balancer.decisions().Text(), matters ? "0: ring" : "");
    EXPECT_EQ(balancer.State().empty(), !matters);
  }
}

// Ranks measure different times; what rank 0 measured counts for all.
TEST(Balancer, AllRanksDecideAlike) {
  const std::vector<BlockMask> masks = Drift(0.02);
  const double even = EvenSeconds(masks.front());
  std::array<std::vector<uint64_t>, 3> hashes;
  RunRanks(3, [&](Communicator& comm) {
    BalancerClock clock = ClockOf(comm);
    const double planning = (comm.rank() == 0 ? 0.05 : 5.0 * comm.rank()) * even;
    clock.now = SteadyClock(planning).now;
    Balancer balancer({.planner = Fractional(), .plan = OptionsFor(kRanks), .rule = {}}, clock);
    for (const BlockMask& mask : masks)
      hashes[static_cast<size_t>(comm.rank())].push_back(balancer.PlanFor(0, mask).plan->hash());
    EXPECT_GT(balancer.Report().made, 3);
    EXPECT_LT(balancer.Report().made, kSteps);
  });
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
}

}  // namespace
}  // namespace equitile
