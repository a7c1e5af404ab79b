#include "equitile/plan/predict/score.h"

#include <gtest/gtest.h>

#include <numeric>

#include "equitile/plan/planners/random_plan_testing.h"
#include "equitile/plan/predict/accounts.h"
#include "equitile/plan/predict/bounds.h"
#include "equitile/plan/predict/simulate.h"

namespace equitile {
namespace {

using testing::CheckCases;
using testing::MasksFor;
using testing::RandomCase;

std::vector<double> RandomSpeeds(RandomCase& random, int32_t ranks) {
  std::vector<double> speeds;
  if (random.Chance(0.5)) return speeds;
  for (int32_t r = 0; r < ranks; ++r)
    speeds.push_back(static_cast<double>(random.Between(1, 8)) / 4);
  return speeds;
}

TEST(Score, EqualsTheWalkOverTheLoweredProgram) {
  EXPECT_TRUE(CheckCases("work and bytes without lowering", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    const Plan plan = random.MakePlan(problem);
    Cluster cluster;
    cluster.wire = {.head_dim = 8 * random.Between(1, 20), .value_bytes = 4};
    RowCounts rows(mask);
    const Score score = ScorePlan(plan, mask, rows, {}, cluster);
    const Accounts accounts =
        TakeAccounts(Lower(plan, MasksFor(problem, mask)), HomeMap(problem), mask, cluster.wire);
    RC_ASSERT(score.work == accounts.work);
    RC_ASSERT(score.traffic.sent == accounts.traffic.sent);
    RC_ASSERT(score.traffic.received == accounts.traffic.received);
    RC_ASSERT(std::accumulate(accounts.traffic.sent.begin(), accounts.traffic.sent.end(),
                              int64_t{0}) == std::accumulate(accounts.traffic.received.begin(),
                                                             accounts.traffic.received.end(),
                                                             int64_t{0}));
  }));
}

TEST(Score, WorkAddsUpAndBoundsHold) {
  EXPECT_TRUE(CheckCases("1 <= bound_any <= bound <= rho <= rho_paper", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    const Plan plan = random.MakePlan(problem);
    Cluster cluster;
    cluster.speeds = RandomSpeeds(random, problem.ranks);
    const CostModel model = random.Chance(0.5) ? CostModel{}
                                               : CostModel{.block = random.Between(1, 1000),
                                                           .row = random.Between(0, 1000)};
    const std::vector<int32_t> row_blocks = RowBlocks(mask);
    RowCounts rows(mask);
    const Score score = ScorePlan(plan, mask, rows, model, cluster);
    int64_t blocks = 0;
    for (const Work& work : score.work.work) blocks += work.blocks;
    RC_ASSERT(blocks == mask.Kept());
    const LowerBounds bounds =
        FindBounds(plan, mask, row_blocks, score.imbalance, model, cluster.speeds);
    constexpr double kRounding = 1e-12;
    RC_ASSERT(1 <= bounds.any);
    RC_ASSERT(bounds.any <= bounds.kind);
    RC_ASSERT(bounds.kind <= score.imbalance.rho * (1 + kRounding));
    RC_ASSERT(score.imbalance.rho <= score.imbalance.rho_paper * (1 + kRounding));
    const Imbalance again = Rescore(plan, mask, model, cluster.speeds);
    RC_ASSERT(again.rho == score.imbalance.rho);
  }));
}

TEST(Score, EmptyMaskIsBalanced) {
  const BlockMask mask({.batch = 1, .heads = 3},
                       {.q_tokens = 500, .kv_tokens = 500, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  for (const Plan& plan : {PlanUlysses(problem), PlanRing(problem), PlanUsp(problem, 2, 2)}) {
    RowCounts rows(mask);
    const Score score = ScorePlan(plan, mask, rows, {}, {});
    EXPECT_EQ(score.imbalance.rho, 1);
    EXPECT_EQ(score.imbalance.rho_paper, 1);
    EXPECT_EQ(score.moved.q_blocks, 0);
    EXPECT_EQ(score.moved.kv_blocks, 0);
  }
}

TEST(Score, BytesOfPlainUlyssesByHand) {
  // 4 heads on 4 ranks, 8 tiles: every rank is home to 2 of 8 tiles and gets one head. It receives
  // Q, K, V of the 6 tiles that are not its own and sends 3 other heads' share of its 2 tiles; O
  // goes the other way.
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 4},
                                          {.q_tokens = 512, .kv_tokens = 512, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  RowCounts rows(mask);
  const Score score = ScorePlan(PlanUlysses(problem), mask, rows, {}, {});
  const int64_t tokens = 6 * 64, qkv = tokens * 3 * 128 * 4, o = tokens * (128 * 4 + 4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(score.traffic.received[static_cast<size_t>(rank)], qkv + o);
    EXPECT_EQ(score.traffic.sent[static_cast<size_t>(rank)], qkv + o);
  }
}

TEST(Score, BytesOfPlainRingByHand) {
  // Rows at home: Q and O do not move. Each rank passes on 3 chunks of K and V of 4 heads.
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 4},
                                          {.q_tokens = 512, .kv_tokens = 512, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  RowCounts rows(mask);
  const Score score = ScorePlan(PlanRing(problem), mask, rows, {}, {});
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(score.traffic.sent[static_cast<size_t>(rank)], 3 * 4 * 128 * 2 * 128 * 4);
    EXPECT_EQ(score.traffic.received[static_cast<size_t>(rank)], 3 * 4 * 128 * 2 * 128 * 4);
  }
  EXPECT_EQ(score.imbalance.rho, 1);
}

Accounts AccountsOf(const Plan& plan, const BlockMask& mask) {
  return TakeAccounts(Lower(plan, mask), HomeMap(plan.problem()), mask, {});
}

TEST(Accounts, BuffersAndMessagesByHand) {
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 4},
                                          {.q_tokens = 512, .kv_tokens = 512, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  const int64_t q = 128 * 4, kv = 2 * q, o = q + 4;  // bytes per token and head

  // One head of 512 tokens; three other homes send, three get output back.
  const Accounts ulysses = AccountsOf(PlanUlysses(problem), mask);
  EXPECT_EQ(ulysses.buffer_bytes, std::vector<int64_t>(4, 512 * (q + kv + o)));
  EXPECT_EQ(ulysses.messages, 4 * 3 * 2);

  // Four heads of 128 query tokens, three chunks of K and V (its own stays with the queries, one is
  // computed, one arrives); each rank passes on three times.
  const Accounts ring = AccountsOf(PlanRing(problem), mask);
  EXPECT_EQ(ring.buffer_bytes, std::vector<int64_t>(4, 4 * 128 * (q + o + 3 * kv)));
  EXPECT_EQ(ring.messages, 4 * 3);

  // Two ranks have two heads each, in two head groups: the second arrives while the first is
  // computed.
  std::vector<RowRuns> runs;
  for (int32_t lane = 0; lane < 4; ++lane)
    runs.push_back({{.end = 8, .rank = lane / 2, .stage = lane % 2}});
  const Accounts groups = AccountsOf(
      MakeExchangePlan(problem, {.name = "fractional", .ulysses = 0, .ring = 0, .parameters = {}},
                       runs, true),
      mask);
  EXPECT_EQ(groups.buffer_bytes,
            (std::vector<int64_t>{512 * (2 * q + 2 * kv + o), 512 * (2 * q + 2 * kv + o), 0, 0}));
  EXPECT_EQ(groups.messages, 2 * 2 * 3 * 2);
}

// --- Time ---

TEST(Simulate, PartsAddUpAndNothingIsNegative) {
  EXPECT_TRUE(CheckCases("seconds = compute + pack + exchange + wait", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    const Plan plan = random.MakePlan(problem);
    Cluster cluster;
    cluster.speeds = RandomSpeeds(random, problem.ranks);
    if (random.Chance(0.7))
      cluster.node_of = EvenNodes(problem.ranks, static_cast<int32_t>(random.Between(1, 4)));
    cluster.node_link = {.latency_seconds = 1e-6, .bytes_per_second = 50e9};
    cluster.row_seconds = random.Chance(0.5) ? 1e-6 : 0;
    cluster.pack_seconds_per_byte = random.Chance(0.5) ? 1e-10 : 0;
    const StageWork work = CountStageWork(plan, mask, RowBlocks(mask));
    const HomeMap homes(problem);
    const Program program = Lower(plan, MasksFor(problem, mask));
    const Prediction prediction = Simulate(program, homes, work, cluster);
    const double slack = 1e-9 * prediction.seconds;
    RC_ASSERT(prediction.compute >= 0 && prediction.exchange >= 0 && prediction.wait >= 0);
    RC_ASSERT(prediction.pack >= 0);
    RC_ASSERT(std::abs(prediction.seconds - prediction.compute - prediction.pack -
                       prediction.exchange - prediction.wait) <= slack);
    const CostModel model = CostInPicoseconds(cluster, problem.grid);
    const Imbalance imbalance = MeasureImbalance(plan, work, model, cluster.speeds);
    // Nobody is faster than the busiest rank's own work, nor than the bytes of the busiest port.
    for (int32_t rank = 0; rank < problem.ranks; ++rank) {
      const double own =
          static_cast<double>(work.OfRank(rank).Cost(model)) * 1e-12 / cluster.Speed(rank);
      RC_ASSERT(prediction.seconds >= own * (1 - 1e-6));
    }
    // A link that takes no time leaves compute and the waiting it causes; a slower one never makes
    // it faster.
    Cluster slower = cluster;
    slower.link.bytes_per_second /= 10;
    slower.node_link.bytes_per_second /= 10;
    RC_ASSERT(Simulate(program, homes, work, slower).seconds >= prediction.seconds - slack);
    Cluster free = cluster;
    free.pack_seconds_per_byte = 0;
    free.link = free.node_link = {.latency_seconds = 0, .bytes_per_second = 1e30};
    const Prediction ideal = Simulate(program, homes, work, free);
    RC_ASSERT(ideal.exchange <= 1e-9);
    RC_ASSERT(ideal.seconds <= imbalance.critical * 1e-12 * (1 + 1e-6) + 1e-12);
    Cluster cabled = cluster;
    cabled.cable_bytes_per_second = 1e9;
    const Prediction shared = Simulate(program, homes, work, cabled);
    RC_ASSERT(shared.seconds >= prediction.seconds - slack);
    RC_ASSERT(std::abs(shared.seconds - shared.compute - shared.pack - shared.exchange -
                       shared.wait) <= 1e-9 * shared.seconds);
    cabled.cable_bytes_per_second = 1e30;
    RC_ASSERT(Simulate(program, homes, work, cabled).seconds <= prediction.seconds + slack);
  }));
}

TEST(Simulate, RanksOfANodeShareItsCable) {
  const BlockMask mask = BlockMask::Dense(
      {.batch = 1, .heads = 4}, {.q_tokens = 1024, .kv_tokens = 1024, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  Cluster cluster;
  cluster.gflops = 1e9;
  cluster.link = {.latency_seconds = 1e-3, .bytes_per_second = 1e9};
  cluster.node_link = {.latency_seconds = 1e-6, .bytes_per_second = 1e12};
  auto seconds = [&](const Plan& plan, const Cluster& on) {
    return Simulate(Lower(plan, mask), HomeMap(problem),
                    CountStageWork(plan, mask, RowBlocks(mask)), on)
        .seconds;
  };
  // Each rank has one head, and half of its tokens come from the other node: two ranks on a node
  // make one whole head's tokens there and back.
  const WireFormat& wire = cluster.wire;
  const double there = 1024.0 * static_cast<double>(wire.QBytes() + wire.KvBytes()) / 1e9;
  const double back = 1024.0 * static_cast<double>(wire.OBytes()) / 1e9;
  Cluster nodes = cluster;
  nodes.node_of = {0, 0, 1, 1};
  const double apart = seconds(PlanUlysses(problem), nodes);
  EXPECT_NEAR(apart, there / 2 + back / 2 + 2e-3, 1e-5);
  nodes.cable_bytes_per_second = 1e9;
  EXPECT_NEAR(seconds(PlanUlysses(problem), nodes), there + back + 2e-3, 1e-5);
  nodes.cable_bytes_per_second = 2e9;
  EXPECT_NEAR(seconds(PlanUlysses(problem), nodes), apart, 1e-5);
  // In a ring one message at a time goes each way between two nodes, unless every second rank is on
  // the other one.
  nodes.cable_bytes_per_second = 0;
  const double ring = seconds(PlanRing(problem), nodes);
  nodes.cable_bytes_per_second = 1e9;
  EXPECT_NEAR(seconds(PlanRing(problem), nodes), ring, 1e-5);
  nodes.node_of = {0, 1, 0, 1};
  const double passes = 3 * 256.0 * 4 * static_cast<double>(wire.KvBytes()) / 1e9;
  EXPECT_NEAR(seconds(PlanRing(problem), nodes), 2 * passes + 3e-3, 1e-4);
}

TEST(Simulate, HeadGroupsHideTheExchange) {
  const BlockMask mask = BlockMask::Dense(
      {.batch = 1, .heads = 16}, {.q_tokens = 4096, .kv_tokens = 4096, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  auto predicted = [&](int32_t stages, double latency) {
    std::vector<RowRuns> runs;
    for (int32_t lane = 0; lane < 16; ++lane)
      runs.push_back({{.end = 64, .rank = lane / 4, .stage = lane % 4 * stages / 4}});
    const Plan plan = MakeExchangePlan(
        problem, {.name = "fractional", .ulysses = 0, .ring = 0, .parameters = {}}, runs, true);
    Cluster cluster;
    cluster.link = {.latency_seconds = latency, .bytes_per_second = 1.25e9};
    return Simulate(Lower(plan, mask), HomeMap(problem),
                    CountStageWork(plan, mask, RowBlocks(mask)), cluster);
  };
  EXPECT_LT(predicted(4, 2e-6).seconds, predicted(1, 2e-6).seconds);
  EXPECT_LT(predicted(4, 2e-6).exchange, 0.5 * predicted(1, 2e-6).exchange);
  // ... unless latency rules.
  EXPECT_GT(predicted(4, 0.1).seconds, predicted(1, 0.1).seconds);
}

TEST(Simulate, RingHidesItsPassesWhenComputeIsLonger) {
  const BlockMask mask = BlockMask::Dense(
      {.batch = 1, .heads = 4}, {.q_tokens = 4096, .kv_tokens = 4096, .block_tokens = 64});
  const Problem problem{
      .ranks = 4, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  const Plan plan = PlanRing(problem);
  const StageWork work = CountStageWork(plan, mask, RowBlocks(mask));
  Cluster cluster;
  const Prediction fast = Simulate(Lower(plan, mask), HomeMap(problem), work, cluster);
  EXPECT_EQ(fast.exchange, 0);
  cluster.link.bytes_per_second = 1e8;
  const Prediction slow = Simulate(Lower(plan, mask), HomeMap(problem), work, cluster);
  // Three passes of 1024 tokens x 4 heads x 1 KiB, then the last quarter of the compute.
  const double pass = 2e-6 + 1024 * 4 * 1024 / 1e8;
  EXPECT_NEAR(slow.seconds, 3 * pass + slow.compute / 4, 1e-9);
  EXPECT_NEAR(slow.wait, 0, 1e-12);
}

TEST(Simulate, PaperFormulaByHand) {
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 8},
                                          {.q_tokens = 512, .kv_tokens = 512, .block_tokens = 64});
  const Problem problem{
      .ranks = 8, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
  Cluster cluster;
  const double block = 4.0 * 128 * 64 * 64 / 100e9;
  cluster.launch_seconds = 7e-6;
  cluster.row_seconds = 3e-7;
  // U4R2: half of a rank's blocks, and all of its rows, in each of two iterations.
  const double iteration = 512 * block / 8 / 2 + 7e-6 + 8 * 3e-7;
  const double all_to_all = 2e-6 + 4.0 * 64 * 8 * 512 * 3 / 4 / 12.5e9;
  const double p2p = 2e-6 + 2.0 * 256 * 2 * 512 / 12.5e9;
  EXPECT_NEAR(PaperLatency(PlanUsp(problem, 4, 2), 512, 1.25, cluster),
              all_to_all + (std::max(iteration, p2p) + iteration) * 1.25, 1e-12);
  // Without blocks the launches are left: one per iteration, where no transfer takes longer.
  cluster.launch_seconds = 1;
  const double launch = 1 + 8 * 3e-7;
  EXPECT_NEAR(PaperLatency(PlanUsp(problem, 8, 1), 0, 1, cluster),
              2e-6 + 4.0 * 64 * 8 * 512 * 7 / 8 / 12.5e9 + launch, 1e-12);
  EXPECT_NEAR(PaperLatency(PlanUsp(problem, 1, 8), 0, 1, cluster), 8 * launch, 1e-12);
}

}  // namespace
}  // namespace equitile
