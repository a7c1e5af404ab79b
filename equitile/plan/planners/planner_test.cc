#include "equitile/plan/planners/planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "equitile/base/error.h"
#include "equitile/pattern/synthetic_mask.h"
#include "equitile/plan/core/validate.h"
#include "equitile/plan/planners/dbsp/dbsp_vectors_testing.h"
#include "equitile/plan/planners/random_plan_testing.h"
#include "equitile/plan/planners/report.h"
#include "equitile/plan/predict/accounts.h"
#include "equitile/plan/predict/bounds.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

using testing::CheckCases;
using testing::MasksFor;
using testing::RandomCase;

TEST(Planner, ParsesNames) {
  for (const char* name :
       {"ulysses", "ring", "fractional", "auto", "usp:4x2", "dbsp:8x1", "dbsp+:1x8", "dbsp:auto"}) {
    EXPECT_EQ(ParsePlanner(name, 8).Text(), name);
  }
  for (const char* bad : {"", "usp", "usp:", "usp:4", "usp:4x", "usp:x2", "usp:4x2x1", "usp:4 x2",
                          "usp:3x2", "usp:-4x-2", "usp:0x8", "ring:8", "ulysses:8x1", "dbsp++:4x2",
                          "usp:99999999999x1", "auto:1x8"}) {
    EXPECT_THROW(ParsePlanner(bad, 8), InputError) << bad;
  }
}

TEST(Planner, AllIsEveryLayoutOnce) {
  const std::vector<PlannerSpec> specs = ParsePlanners("all", 12);
  std::set<std::string> names;
  for (const PlannerSpec& spec : specs) names.insert(spec.Text());
  EXPECT_EQ(names.size(), specs.size());
  EXPECT_EQ(specs.size(), 5u + 3 * 6);
  EXPECT_TRUE(names.contains("dbsp+:3x4") && names.contains("auto") && names.contains("usp:12x1"));
  EXPECT_EQ(ParsePlanners("ring,all,ring", 12).size(), specs.size());
  EXPECT_EQ(ParsePlanners("ring,usp:3x4", 12).size(), 2u);
  EXPECT_THROW(ParsePlanners("ring,,usp:3x4", 12), InputError);
  EXPECT_THROW(ParsePlanners("all", 0), InputError);
}

// --- Every planner, any problem ---

PlanOptions OptionsFor(const Problem& problem, RandomCase& random) {
  PlanOptions options{
      .ranks = problem.ranks, .homes = problem.homes, .cost = {}, .cluster = {}, .dbsp = {}};
  options.cluster.wire.head_dim = 8 * random.Between(1, 16);
  if (random.Chance(0.3)) {
    for (int32_t r = 0; r < problem.ranks; ++r) {
      options.cluster.speeds.push_back(static_cast<double>(random.Between(1, 4)) / 2);
    }
  }
  if (random.Chance(0.3)) {
    options.cluster.node_of = EvenNodes(problem.ranks, static_cast<int32_t>(random.Between(1, 8)));
    if (random.Chance(0.5)) options.cluster.cable_bytes_per_second = 1e9;
    options.cluster.node_link = {.latency_seconds = 1e-6, .bytes_per_second = 50e9};
  }
  if (random.Chance(0.3)) {
    options.cluster.row_seconds = 1e-6;
    options.cost = CostInPicoseconds(options.cluster, problem.grid);
  }
  return options;
}

TEST(Planner, EveryPlanIsValidDeterministicAndWithinItsBounds) {
  EXPECT_TRUE(CheckCases("all planners", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    const LaneMasks masks = MasksFor(problem, mask);
    const PlanOptions options = OptionsFor(problem, random);
    RowCounts rows(mask);
    std::vector<PlannerSpec> specs = AllPlanners(problem.ranks);
    // Rings of many ranks make the case slow and no more telling.
    std::erase_if(specs, [](const PlannerSpec& spec) {
      return spec.kind == PlannerKind::kDbspPlus && spec.ring > 8;
    });
    for (const PlannerSpec& spec : specs) {
      const MadePlan made = MakePlan(spec, masks, rows, options);
      const Plan& plan = made.plan;
      RC_ASSERT(plan.planner().Text() == spec.Text());
      RC_ASSERT(MakePlan(spec, masks, rows, options).plan == plan);
      const Program program = Lower(plan, masks);
      const std::optional<std::string> violation = Validate(program, mask);
      if (violation) RC_FAIL(spec.Text() + ": " + *violation);

      const StageWork counted = CountStageWork(plan, mask, rows.Blocks());
      const Score score = ScorePlan(plan, masks, rows, options.cost, options.cluster, made.work);
      for (int32_t rank = 0; rank < problem.ranks; ++rank) {
        for (int32_t stage = 0; stage < plan.Stages(); ++stage) {
          RC_ASSERT(score.work.At(rank, stage).blocks == counted.At(rank, stage).blocks);
        }
      }
      const Accounts accounts = TakeAccounts(program, HomeMap(problem), mask, options.cluster.wire);
      RC_ASSERT(accounts.traffic == score.traffic);
      const LowerBounds bounds = FindBounds(plan, mask, rows.Blocks(), score.imbalance,
                                            options.cost, options.cluster.speeds);
      RC_ASSERT(bounds.kind <= score.imbalance.rho * (1 + 1e-12));
      RC_ASSERT(bounds.any <= bounds.kind);
    }
  }));
}

TEST(Planner, RefusesWhatDoesNotFit) {
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 2},
                                          {.q_tokens = 128, .kv_tokens = 128, .block_tokens = 64});
  PlanOptions options;
  options.ranks = 0;
  EXPECT_THROW(MakePlan("ulysses", mask, options), InputError);
  options.ranks = 2;
  options.cluster.speeds = {1, 1, 1};
  EXPECT_THROW(MakePlan("ulysses", mask, options), InputError);
  options.cluster.speeds.clear();
  const LaneMasks without_grid({.blocks = mask,
                                .token_grid = {},
                                .orders = {TokenOrder::kHWF, TokenOrder::kHWF},
                                .tails = {}});
  EXPECT_THROW(MakePlan("ulysses", without_grid, options), InputError);
}

// --- The reference's static layouts ---

TEST(Planner, StaticLayoutsScoreAsTheReferenceSays) {
  std::map<std::string, BlockMask> masks;
  int checked = 0;
  for (const testing::StoredPlan& stored : testing::ReadStoredPlans()) {
    if (stored.variant != "v4r2") continue;
    if (!masks.contains(stored.mask)) masks[stored.mask] = testing::ReadVectorMask(stored.mask);
    const BlockMask& mask = masks[stored.mask];
    PlanOptions options;
    options.ranks = static_cast<int32_t>(stored.ulysses * stored.ring);
    RowCounts rows(mask);
    std::vector<std::string> specs = {fmt::format("usp:{}x{}", stored.ulysses, stored.ring)};
    if (stored.ring == 1) specs.push_back("ulysses");
    if (stored.ulysses == 1) specs.push_back("ring");
    for (const std::string& spec : specs) {
      const Score score = ScorePlan(MakePlan(spec, mask, options), mask, rows, {}, options.cluster);
      EXPECT_EQ(score.imbalance.total, stored.total);
      EXPECT_EQ(score.imbalance.critical, static_cast<double>(stored.crit_before))
          << stored.mask << " " << spec;
      EXPECT_EQ(score.imbalance.critical_paper, static_cast<double>(stored.crit_paper_before))
          << stored.mask << " " << spec;
      EXPECT_EQ(score.moved.q_blocks, 0);
      EXPECT_EQ(score.moved.kv_blocks, 0);
      ++checked;
    }
  }
  EXPECT_GT(checked, 80);
}

TEST(Planner, WhatSplitsRowsIsKnownWithoutAPlan) {
  for (const int64_t batch : {1, 2, 3}) {
    for (const int32_t ranks : {1, 2, 3, 4, 6}) {
      const BlockMask mask =
          BlockMask::Dense({.batch = batch, .heads = 2}, {.q_tokens = 500, .kv_tokens = 500});
      PlanOptions options;
      options.ranks = ranks;
      for (const PlannerSpec& spec : AllPlanners(ranks)) {
        EXPECT_EQ(MaySplitRows(spec, batch, ranks, true),
                  MakePlan(spec.Text(), mask, options).SplitsRows())
            << spec.Text() << ", " << batch << " items, " << ranks << " ranks";
      }
      const PlannerSpec any = ParsePlanner("auto", ranks), dbsp = ParsePlanner("dbsp:auto", ranks);
      EXPECT_FALSE(MaySplitRows(any, batch, ranks, /*reproducible=*/true));
      // Two items on two ranks have one each, whatever the degrees.
      const bool may = ranks > 1 && batch % ranks != 0;
      EXPECT_EQ(MaySplitRows(any, batch, ranks, /*reproducible=*/false), may) << batch << ranks;
      EXPECT_EQ(MaySplitRows(dbsp, batch, ranks, /*reproducible=*/true), may) << batch << ranks;
    }
  }
}

// --- Auto ---

TEST(Auto, TakesTheCheapestAndKeepsRowsWhole) {
  const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=12,blocks=48"));
  PlanOptions options;
  options.ranks = 6;
  RowCounts rows(mask);
  for (bool reproducible : {true, false}) {
    options.reproducible = reproducible;
    const std::vector<Candidate> candidates =
        RankCandidates(ParsePlanner("auto", 6), mask, rows, options);
    EXPECT_EQ(candidates.size(), reproducible ? 5u : 3u + 3 * 4);
    for (size_t i = 1; i < candidates.size(); ++i) {
      EXPECT_LE(candidates[i - 1].seconds, candidates[i].seconds);
    }
    for (const Candidate& candidate : candidates) {
      if (reproducible) EXPECT_FALSE(candidate.made.plan.SplitsRows());
    }
    const Plan chosen = MakePlan("auto", mask, options);
    EXPECT_EQ(chosen, candidates.front().made.plan);
    EXPECT_EQ(chosen.planner().Text(), candidates.front().spec.Text());
  }
}

// The shortcut must not change the choice, whatever balance, exchange and speeds are worth.
TEST(Auto, TheBestAloneIsTheFirstOfAll) {
  for (const char* text : {"wan,heads=12,blocks=48", "wan,heads=3,blocks=7", "wan,heads=1,blocks=3"}) {
    const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec(text));
    for (const int32_t ranks : {1, 3, 6, 8}) {
      for (const double gflops : {1.0, 100.0, 1e5}) {
        for (const bool reproducible : {true, false}) {
          for (const double slowest : {1.0, 0.5}) {
            PlanOptions options;
            options.ranks = ranks;
            options.reproducible = reproducible;
            options.cluster.gflops = gflops;
            options.cluster.row_seconds = 1e-6;
            if (slowest < 1) {
              options.cluster.speeds.assign(static_cast<size_t>(ranks), 1.0);
              options.cluster.speeds.back() = slowest;
            }
            RowCounts rows(mask);
            for (const char* name : {"auto", "dbsp:auto"}) {
              const PlannerSpec chooser = ParsePlanner(name, ranks);
              const Candidate first =
                  std::move(RankCandidates(chooser, mask, rows, options).front());
              const Candidate best = BestCandidate(chooser, mask, rows, options);
              EXPECT_EQ(best.spec, first.spec) << text << ranks << name;
              EXPECT_EQ(best.seconds, first.seconds) << text << ranks << name;
              EXPECT_EQ(best.made.plan, first.made.plan) << text << ranks << name;
            }
          }
        }
      }
    }
  }
}

struct FreeChoice {
  Candidate best, fractional;
};

FreeChoice ChooseFreely(const BlockMask& mask, PlanOptions options) {
  options.reproducible = false;
  RowCounts rows(mask);
  const std::vector<Candidate> candidates =
      RankCandidates(ParsePlanner("auto", options.ranks), mask, rows, options);
  const auto fractional = std::find_if(
      candidates.begin(), candidates.end(),
      [](const Candidate& candidate) { return candidate.spec.kind == PlannerKind::kFractional; });
  return {candidates.front(), *fractional};
}

double Exchange(const Plan& plan, const BlockMask& mask, const Cluster& cluster) {
  return Simulate(Lower(plan, mask), HomeMap(plan.problem()),
                  CountStageWork(plan, mask, RowBlocks(mask)), cluster)
      .exchange;
}

int64_t BytesMax(const Plan& plan, const BlockMask& mask) {
  return CountTraffic(plan, HomeMap(plan.problem()), mask, {}).Max();
}

// One dense head: whoever computes a row needs all K/V, so fractional moves no fewer bytes than a
// ring. It has only one head to send, nothing to compute meanwhile, and a slow link to send it
// over; a ring computes while K/V go around.
TEST(Auto, OneHeadAndASlowLinkAreBetterOffInARing) {
  const BlockMask mask = BlockMask::Dense(
      {.batch = 1, .heads = 1}, {.q_tokens = 4096, .kv_tokens = 4096, .block_tokens = 64});
  PlanOptions options;
  options.ranks = 8;
  options.cluster.link = {.latency_seconds = 2e-6, .bytes_per_second = 2e8};
  const auto [best, fractional] = ChooseFreely(mask, options);
  EXPECT_EQ(best.spec.kind, PlannerKind::kRing) << best.spec.Text();
  EXPECT_LE(BytesMax(best.made.plan, mask), BytesMax(fractional.made.plan, mask));
  EXPECT_GT(Exchange(fractional.made.plan, mask, options.cluster),
            1.5 * Exchange(best.made.plan, mask, options.cluster));
  options.reproducible = true;
  EXPECT_EQ(MakePlan("auto", mask, options).planner().Text(), "fractional");
}

// Two heads on eight ranks: fractional cuts each into four, and again all of its exchange comes
// before its compute. Here the link is fast, and the small difference goes to a layout in rings.
TEST(Auto, FewHeadsOnManyRanksAreBetterOffInARing) {
  const BlockMask mask =
      MakeSyntheticMask(ParseSyntheticSpec("uniform,heads=2,blocks=64,density=0.3"));
  PlanOptions options;
  options.ranks = 8;
  const auto [best, fractional] = ChooseFreely(mask, options);
  EXPECT_NE(best.spec.kind, PlannerKind::kFractional);
  EXPECT_TRUE(best.made.plan.SplitsRows());
  EXPECT_GT(Exchange(fractional.made.plan, mask, options.cluster),
            Exchange(best.made.plan, mask, options.cluster));
}

// With heads to choose from, most of the exchange hides behind other heads' compute, and nothing
// waits.
TEST(Auto, ManyHeadsAreBestSplitFractionally) {
  const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=40,blocks=128"));
  PlanOptions options;
  options.ranks = 8;
  EXPECT_EQ(ChooseFreely(mask, options).best.spec.kind, PlannerKind::kFractional);
}

// --- dbsp:auto ---

TEST(DbspAuto, ChoosesTheLeastOfThePapersEstimatesAmongAllDegrees) {
  for (const char* mask_spec : {"wan,heads=12,blocks=48", "uniform,heads=16,blocks=64,density=0.9",
                                "uniform,heads=16,blocks=64,density=0.02", "wan,heads=5,blocks=7",
                                "uniform,heads=2,blocks=3,density=0"}) {
    const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec(mask_spec));
    for (const int32_t ranks : {1, 6, 7, 8}) {
      for (const double row_seconds : {0.0, 1e-6}) {
        PlanOptions options;
        options.ranks = ranks;
        options.cluster.row_seconds = row_seconds;
        std::string best;
        double least = std::numeric_limits<double>::infinity();
        for (int32_t u = ranks; u >= 1; --u) {
          if (ranks % u != 0) continue;
          const std::string spec = fmt::format("dbsp:{}x{}", u, ranks / u);
          const Plan plan = MakePlan(spec, mask, options);
          const double rho = Rescore(plan, mask, options.cost).rho;
          const double seconds = PaperLatency(plan, mask.Kept(), rho, options.cluster);
          if (seconds < least) {
            least = seconds;
            best = spec;
          }
        }
        const Plan chosen = MakePlan("dbsp:auto", mask, options);
        EXPECT_EQ(chosen.planner().Text(), best) << mask_spec << " on " << ranks;
        EXPECT_EQ(chosen, MakePlan(best, mask, options));
      }
    }
  }
}

// Each iteration of a ring is launched anew; what an all-to-all moves does not depend on that.
TEST(DbspAuto, TheLaunchTermTurnsTheChoiceFromRings) {
  const BlockMask mask = BlockMask::Dense(
      {.batch = 1, .heads = 16}, {.q_tokens = 4096, .kv_tokens = 4096, .block_tokens = 64});
  PlanOptions options;
  options.ranks = 8;
  options.cluster.launch_seconds = 0;
  EXPECT_EQ(MakePlan("dbsp:auto", mask, options).planner().Text(), "dbsp:1x8");
  options.cluster.launch_seconds = 1e-2;
  EXPECT_EQ(MakePlan("dbsp:auto", mask, options).planner().Text(), "dbsp:8x1");
}

TEST(Report, FiguresAreThoseOfTheParts) {
  const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=12,blocks=48"));
  PlanOptions options;
  options.ranks = 6;
  RowCounts rows(mask);
  std::vector<PlanReport> reports;
  for (const char* name : {"ulysses", "ring", "dbsp:3x2", "fractional"}) {
    const Plan plan = MakePlan(name, mask, options);
    const Score score = ScorePlan(plan, mask, rows, options.cost, options.cluster);
    reports.push_back(MakeReport(plan, score, mask, rows, options));
    const PlanReport& report = reports.back();
    EXPECT_EQ(report.planner, name);
    EXPECT_EQ(report.rho, score.imbalance.rho);
    EXPECT_EQ(report.bytes_max, score.traffic.Max());
    EXPECT_EQ(std::accumulate(report.work_per_rank.begin(), report.work_per_rank.end(), int64_t{0}),
              mask.Kept());
    EXPECT_EQ(report.donated.has_value(), std::string(name) == "fractional");
    EXPECT_GT(report.messages, 0);
    EXPECT_GT(report.buffer_bytes_max, 0);
  }
  const std::vector<size_t> order = BestFirst(reports);
  const std::string why = WhyBest(reports, order[0]);
  EXPECT_NE(why.find(reports[order[0]].planner), std::string::npos) << why;
  EXPECT_NE(why.find(reports[order[1]].planner), std::string::npos) << why;
}

TEST(Report, OwnersOfARingPlanAreTheReferences) {
  const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=8,blocks=32"));
  PlanOptions options;
  options.ranks = 8;
  const DbspLayout layout = MakeDbsp(mask, 4, 2, options.dbsp);
  const RingOwners owners = OwnersOf(MakePlan("dbsp:4x2", mask, options));
  EXPECT_EQ(owners.head_perm, layout.lane_perm);
  for (const auto& q_owner : owners.q_owner) EXPECT_EQ(q_owner, layout.q_owner);
  for (const auto& kv_owner : owners.kv_owner) EXPECT_EQ(kv_owner, layout.kv_owner);
}

}  // namespace
}  // namespace equitile
