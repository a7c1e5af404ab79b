#include "equitile/plan/core/plan.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "equitile/plan/planners/random_plan_testing.h"

namespace equitile {
namespace {

Problem SmallProblem(int32_t ranks) {
  return {.ranks = ranks,
          .lanes = {.batch = 1, .heads = 2},
          .grid = {.q_tokens = 256, .kv_tokens = 256, .block_tokens = 64},
          .token_grid = {},
          .orders = {}};
}

TEST(Plan, JoinsRunsAndSharesEqualMaps) {
  const RowRuns cut = {{.end = 1, .rank = 0}, {.end = 2, .rank = 0}, {.end = 4, .rank = 1}};
  const RowRuns joined = {{.end = 2, .rank = 0}, {.end = 4, .rank = 1}};
  const Plan a = MakeExchangePlan(SmallProblem(2), {.name = "fractional"}, {cut, joined}, true);
  const Plan b = MakeExchangePlan(SmallProblem(2), {.name = "fractional"}, {joined, joined}, true);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_EQ(a.parts().row_maps.size(), 1u);
  EXPECT_EQ(a.RowOwners(1), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(a.RowOwner(1, 1), 0);
  EXPECT_EQ(a.RowOwner(1, 2), 1);
}

TEST(Plan, HashSeesEveryPart) {
  const RowRuns runs = {{.end = 2, .rank = 0}, {.end = 4, .rank = 1}};
  const Plan plan = MakeExchangePlan(SmallProblem(2), {.name = "fractional"}, {runs, runs}, true);
  auto changed = [&](auto&& change) {
    PlanParts parts = plan.parts();
    change(parts);
    const Plan other(parts);
    EXPECT_NE(other, plan);
    EXPECT_NE(other.hash(), plan.hash());
  };
  changed([](PlanParts& p) { p.row_maps[0][0].end = 3; });
  changed([](PlanParts& p) { p.row_maps[0][1].rank = 0; });
  changed([](PlanParts& p) { p.row_maps[0][1].stage = 1; });
  changed([](PlanParts& p) { p.needed_kv_only = false; });
  changed([](PlanParts& p) { p.planner.name = "ulysses"; });
  changed([](PlanParts& p) { p.planner.parameters = {{"reward", "2"}}; });
  changed([](PlanParts& p) { p.problem.ranks = 3; });
  changed([](PlanParts& p) { p.problem.grid.q_tokens = 255; });
  changed([](PlanParts& p) { p.problem.lanes = {.batch = 2, .heads = 1}; });
  changed([](PlanParts& p) { p.problem.homes = {0, 129}; });
}

// Stored plans stay valid: this one's hash was printed before problems could carry homes.
TEST(Plan, HomesThatAreTheDefaultAreNoneAndLeaveTheHash) {
  const RowRuns runs = {{.end = 2, .rank = 0}, {.end = 4, .rank = 1}};
  Problem problem = SmallProblem(2);
  const Plan plan = MakeExchangePlan(problem, {.name = "fractional"}, {runs, runs}, true);
  EXPECT_EQ(plan.hash(), uint64_t{0x906cf42fcd44d37c});
  problem.homes = {0, 128};
  EXPECT_EQ(MakeExchangePlan(problem, {.name = "fractional"}, {runs, runs}, true), plan);
  EXPECT_EQ(CheckedProblem(problem), CheckedProblem(SmallProblem(2)));
}

TEST(CheckedProblem, RefusesHomesThatDoNotCutTheTokens) {
  auto refused = [](std::vector<int64_t> homes, const char* words, int64_t kv_tokens = 256) {
    Problem problem = SmallProblem(3);
    problem.lanes.batch = 2;
    problem.grid.kv_tokens = kv_tokens;
    problem.homes = std::move(homes);
    try {
      CheckedProblem(problem);
      ADD_FAILURE() << words;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refused({0, 1, 2}, "2 batch items on 3 ranks need 6");
  refused({0, 1, 2, 0, 3, 2}, "item 1: the home of rank 2 begins at token 2; it must begin at 3");
  refused({0, 1, 2, 5, 6, 7}, "item 1: the home of rank 0 begins at token 5");
  refused({0, 1, 257, 0, 0, 0}, "item 0: the home of rank 2 begins at token 257");
  refused({-1, 1, 2, 0, 0, 0}, "item 0: the home of rank 0 begins at token -1");
  refused({0, 1, 2, 0, 0, 0}, "queries and keys", 255);
  Problem problem = SmallProblem(3);
  for (const std::vector<int64_t>& homes :
       {std::vector<int64_t>{0, 0, 0}, {0, 256, 256}, {0, 1, 255}}) {
    problem.homes = homes;
    EXPECT_EQ(CheckedProblem(problem).homes, homes);
  }
}

TEST(Plan, RingRanksAreNeighboursInsideAChunk) {
  const std::vector<int32_t> halves = {0, 0, 1, 1}, q_owner = {0, 1, 1, 0}, kv_owner = {1, 0, 1, 0};
  const std::vector<int32_t> lanes = {1, 0};
  const std::vector<UlyssesGroup> groups = {
      {.lanes = std::span(lanes).first(1), .q_owner = halves, .kv_owner = halves},
      {.lanes = std::span(lanes).last(1), .q_owner = q_owner, .kv_owner = kv_owner}};
  const Plan plan =
      MakeRingPlan(SmallProblem(4), {.name = "usp", .ulysses = 2, .ring = 2}, groups, false);
  EXPECT_EQ(plan.planner().Text(), "usp:2x2");
  EXPECT_EQ(plan.rings()[0].ranks, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(plan.rings()[1].ranks, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(plan.RowOwners(1), (std::vector<int32_t>{0, 0, 2, 2}));
  EXPECT_EQ(plan.RowOwners(0), (std::vector<int32_t>{1, 3, 3, 1}));
  EXPECT_EQ(plan.Stages(), 2);
  EXPECT_TRUE(plan.SplitsRows());
}

TEST(Plan, RingGroupsOfTwoBatchItemsLieWhereTheItemsLive) {
  Problem problem = SmallProblem(4);
  problem.lanes = {.batch = 2, .heads = 1};
  const std::vector<int32_t> owner = {0, 0, 1, 1}, first = {0}, second = {1};
  const Plan plan = MakeRingPlan(
      problem, {.name = "ring"},
      std::vector<UlyssesGroup>{{.lanes = first, .q_owner = owner, .kv_owner = owner},
                                {.lanes = second, .q_owner = owner, .kv_owner = owner}},
      false);
  EXPECT_EQ(plan.rings()[0].ranks, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(plan.rings()[1].ranks, (std::vector<int32_t>{2, 3}));
}

TEST(Plan, MadePlansAreCanonical) {
  EXPECT_TRUE(equitile::testing::CheckCases("canonical", [](equitile::testing::RandomCase& random) {
    const Plan plan = random.MakePlan(random.MakeProblem());
    RC_ASSERT(Plan(plan.parts()).parts() == plan.parts());
  }));
}

TEST(Plan, RefusesWhatIsNoPlan) {
  const RowRuns runs = {{.end = 2, .rank = 0}, {.end = 4, .rank = 1}};
  const Plan plan = MakeExchangePlan(SmallProblem(2), {.name = "fractional"}, {runs, runs}, true);
  const std::vector<int32_t> owner = {0, 0, 1, 1}, lanes = {0, 1};
  const Plan ring = MakeRingPlan(
      SmallProblem(2), {.name = "ring"},
      std::vector<UlyssesGroup>{{.lanes = lanes, .q_owner = owner, .kv_owner = owner}}, false);
  auto refused = [](const Plan& from, auto&& change, const std::string& words) {
    PlanParts parts = from.parts();
    change(parts);
    try {
      Plan other(parts);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refused(
      plan, [](PlanParts& p) { p.row_maps[0][1].rank = 2; }, "owner 2 is not a rank");
  refused(
      plan, [](PlanParts& p) { p.row_maps[0][1].rank = -1; }, "owner -1");
  refused(
      plan, [](PlanParts& p) { p.row_maps[0].pop_back(); }, "have no owner");
  refused(
      plan, [](PlanParts& p) { p.row_maps[0][1].end = 5; }, "must ascend");
  refused(
      plan,
      [](PlanParts& p) {
        p.row_maps[0] = {
            {.end = 1, .rank = 0}, {.end = 2, .rank = 1}, {.end = 4, .rank = 0, .stage = 1}};
      },
      "stages 0 and 1");
  refused(
      plan, [](PlanParts& p) { p.map_of_lane.pop_back(); }, "lanes");
  refused(
      plan, [](PlanParts& p) { p.map_of_lane[0] = 7; }, "does not exist");
  refused(
      plan, [](PlanParts& p) { p.problem.ranks = 0; }, "at least 1");
  refused(
      plan, [](PlanParts& p) { p.problem.orders.assign(2, TokenOrder::kHWF); }, "token grid");
  refused(
      plan, [](PlanParts& p) { p.rings.push_back({}); }, "exchange plan");
  refused(
      ring, [](PlanParts& p) { p.rings.clear(); }, "without ring groups");
  refused(
      ring,
      [](PlanParts& p) {
        p.rings[0].ranks = {0, 0};
      },
      "two ring groups");
  refused(
      ring, [](PlanParts& p) { p.rings[0].lanes = {0}; }, "lane 1 is in no ring group");
  refused(
      ring, [](PlanParts& p) { p.kv_maps[0][3] = 2; }, "kv owner 2");
  refused(
      ring, [](PlanParts& p) { p.kv_maps[0].pop_back(); }, "kv blocks");
  refused(
      ring, [](PlanParts& p) { p.row_maps[0][1].stage = 1; }, "stage 1");
  refused(
      ring,
      [](PlanParts& p) {
        p.rings[0].ranks = {0};
        p.kv_maps[0].assign(4, 0);
      },
      "rank 1 is in no ring group");
  const std::vector<int32_t> alone = {0, 0, 0, 0};
  const Plan two =
      MakeRingPlan(SmallProblem(2), {.name = "usp", .ulysses = 2, .ring = 1},
                   std::vector<UlyssesGroup>{
                       {.lanes = std::span(lanes).first(1), .q_owner = alone, .kv_owner = alone},
                       {.lanes = std::span(lanes).last(1), .q_owner = alone, .kv_owner = alone}},
                   false);
  refused(
      two, [](PlanParts& p) { p.row_maps[0][0].rank = 1; },
      "rank 1, which is not in the lane's ring group");
}

}  // namespace
}  // namespace equitile
