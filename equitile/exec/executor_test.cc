// Every plan on every number of ranks against one kernel call.
#include "equitile/exec/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "equitile/comm/solo/solo.h"
#include "equitile/exec/exec_testing.h"
#include "equitile/plan/core/validate.h"
#include "equitile/plan/core/walker.h"
#include "equitile/plan/predict/accounts.h"

namespace equitile {
namespace {

using testing::AwkwardCases;
using testing::AwkwardHomes;
using testing::ExecCase;
using testing::ExecResult;
using testing::ExecWorkload;

// The first place where bits differ, in words; empty where none do.
std::string FirstDifference(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]))
      return fmt::format("[{}] is {}, must be {}", i, got[i], want[i]);
  }
  return "";
}

std::string FirstBeyondBound(const std::vector<float>& got, const std::vector<float>& want,
                             double bound) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
    if (!same && !(std::abs(double{got[i]} - want[i]) <= bound))
      return fmt::format("[{}] is {}, must be {} within {:.2g}", i, got[i], want[i], bound);
  }
  return "";
}

struct Runs {
  ExecResult result;
  std::vector<RunStats> stats;  // [ranks]
};

Runs RunOnRanks(const ExecWorkload& workload, const Plan& plan, int32_t ranks,
                const ExecutorOptions& options = {}, int times = 2, int threads = 1) {
  Runs runs{.result = workload.Empty(), .stats = {}};
  const ExecWorkload other(workload.test(), 2);
  ExecResult others = other.Empty();
  runs.stats.resize(static_cast<size_t>(ranks));
  RunRanks(ranks,
           [&](Communicator& comm) {
             ThreadPool pool(threads);
             Executor executor(comm, pool, options);
             const auto part =
                 executor.Prepare(plan, workload.test().Masks(), workload.test().head_dim);
             // Other numbers first: buffers and messages of one run must not reach into the next.
             for (int i = 1; i < times; ++i) other.RunRank(executor, *part, others);
             runs.stats[static_cast<size_t>(comm.rank())] =
                 workload.RunRank(executor, *part, runs.result);
           },
           {.watchdog_seconds = 60, .on_lost = {}});
  return runs;
}

class ExecutorTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(ExecutorTest, AllPlannersOnAwkwardShapes) {
  const int32_t ranks = GetParam();
  for (const ExecCase& test : AwkwardCases()) {
    const ExecWorkload workload(test);
    const ExecResult want = workload.OnOneRank();
    for (const PlannerSpec& spec : ParsePlanners("all", ranks)) {
      SCOPED_TRACE(test.name + " " + spec.Text());
      const Plan plan = MakePlan(spec.Text(), test.Masks(), workload.Options(ranks));
      const Runs runs = RunOnRanks(workload, plan, ranks);
      if (plan.SplitsRows()) {
        const double bound = SplitRowBound(test.head_dim, test.grid.kv_tokens, plan.Stages(),
                                           workload.MaxScore(), workload.MaxValue());
        EXPECT_EQ(FirstBeyondBound(runs.result.out, want.out, bound), "");
        EXPECT_EQ(FirstBeyondBound(runs.result.lse, want.lse, bound), "");
      } else {
        EXPECT_EQ(FirstDifference(runs.result.out, want.out), "");
        EXPECT_EQ(FirstDifference(runs.result.lse, want.lse), "");
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Plans, masks and shapes that take turns on one executor, as layers do: each finds buffers that
// others have filled with other numbers.
TEST_P(ExecutorTest, RunsInTurnDoNotReachIntoEachOther) {
  const int32_t ranks = GetParam();
  const std::vector<ExecCase> cases = AwkwardCases();
  struct Turn {
    const ExecWorkload& workload;
    Plan plan;
    ExecResult want, got;
  };
  std::vector<std::unique_ptr<ExecWorkload>> workloads;
  std::vector<Turn> turns;
  uint64_t seed = 10;
  for (const char* name : {"Primes", "BatchOfTwo", "Orders"}) {
    const auto test =
        std::find_if(cases.begin(), cases.end(), [&](const ExecCase& c) { return c.name == name; });
    for (const char* planner : {"fractional", "ring", "fractional"}) {
      const ExecWorkload& workload =
          *workloads.emplace_back(std::make_unique<ExecWorkload>(*test, ++seed));
      turns.push_back({workload, MakePlan(planner, test->Masks(), workload.Options(ranks)),
                       workload.OnOneRank(), workload.Empty()});
    }
  }
  RunRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    Executor executor(comm, pool);
    for (Turn& turn : turns) {
      const ExecCase& test = turn.workload.test();
      turn.workload.RunRank(executor, *executor.Prepare(turn.plan, test.Masks(), test.head_dim),
                            turn.got);
    }
  });
  for (const Turn& turn : turns) {
    const ExecCase& test = turn.workload.test();
    SCOPED_TRACE(test.name + " " + turn.plan.planner().Text());
    const double bound = turn.plan.SplitsRows()
                             ? SplitRowBound(test.head_dim, test.grid.kv_tokens, turn.plan.Stages(),
                                             turn.workload.MaxScore(), turn.workload.MaxValue())
                             : 0.0;
    EXPECT_EQ(FirstBeyondBound(turn.got.out, turn.want.out, bound), "");
    EXPECT_EQ(FirstBeyondBound(turn.got.lse, turn.want.lse, bound), "");
  }
}

// Packing, gathering, computing and unpacking are shared by a rank's threads; who did what leaves
// no trace in the bits, not even where partial rows are merged.
TEST(ExecutorThreads, LeaveNoTrace) {
  for (const ExecCase& test : AwkwardCases()) {
    const ExecWorkload workload(test);
    for (const int32_t ranks : {1, 2, 3}) {
      for (const PlannerSpec& spec : ParsePlanners("all", ranks)) {
        const Plan plan = MakePlan(spec.Text(), test.Masks(), workload.Options(ranks));
        const Runs alone = RunOnRanks(workload, plan, ranks);
        for (const int threads : {2, 5}) {
          SCOPED_TRACE(fmt::format("{} {} on {} ranks of {} threads", test.name, spec.Text(), ranks,
                                   threads));
          const Runs runs = RunOnRanks(workload, plan, ranks, {}, 2, threads);
          EXPECT_EQ(FirstDifference(runs.result.out, alone.result.out), "");
          EXPECT_EQ(FirstDifference(runs.result.lse, alone.result.lse), "");
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(ExecutorTest, HomesMayBeCutAnywhere) {
  const int32_t ranks = GetParam();
  if (ranks == 1 || ranks > 4) GTEST_SKIP() << "slow, and says nothing new";
  std::vector<ExecCase> cases = AwkwardCases();
  std::erase_if(cases, [](const ExecCase& test) {
    return test.name != "Primes" && test.name != "BatchOfTwo" && test.name != "Orders";
  });
  cases.push_back({.name = "BatchOfThree",
                   .lanes = {.batch = 3, .heads = 2},
                   .grid = {.q_tokens = 211, .kv_tokens = 211, .block_tokens = 32},
                   .head_dim = 8,
                   .mask = {},
                   .token_grid = {},
                   .orders = {}});
  cases.back().mask = testing::RandomMask(cases.back().lanes, cases.back().grid, 0.4, 77);
  for (ExecCase& test : cases) {
    const ExecWorkload workload(test);
    const ExecResult want = workload.OnOneRank();
    for (const PlannerSpec& spec : AllPlanners(ranks)) {
      test.homes.clear();
      const Plan plan = MakePlan(spec.Text(), test.Masks(), workload.Options(ranks));
      // Parts of rows are merged in the plan's order, whoever holds the tokens.
      const ExecResult expected =
          plan.SplitsRows() ? RunOnRanks(workload, plan, ranks, {}, 1).result : want;
      for (const std::vector<int64_t>& homes :
           AwkwardHomes(test.lanes, test.grid.q_tokens, ranks)) {
        SCOPED_TRACE(
            fmt::format("{} {} homes at {}", test.name, spec.Text(), fmt::join(homes, " ")));
        test.homes = homes;
        const Plan cut = MakePlan(spec.Text(), test.Masks(), workload.Options(ranks));
        EXPECT_EQ(Validate(Lower(cut, test.Masks()), test.Masks()), std::nullopt);
        const Runs runs = RunOnRanks(workload, cut, ranks, {}, 1, ranks % 2 + 1);
        EXPECT_EQ(FirstDifference(runs.result.out, expected.out), "");
        EXPECT_EQ(FirstDifference(runs.result.lse, expected.lse), "");
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// In shapes without padding bytes and buffers are exactly what the plan says, wherever homes are.
TEST(ExecutorAccounts, BytesAndBuffersAreThePlans) {
  ExecCase test{.name = "Even",
                .lanes = {.batch = 2, .heads = 6},
                .grid = {.q_tokens = 1024, .kv_tokens = 1024, .block_tokens = 64},
                .head_dim = 32,
                .mask = {},
                .token_grid = {},
                .orders = {}};
  test.mask = testing::RandomMask(test.lanes, test.grid, 0.2, 5);
  const ExecWorkload workload(test);
  for (const int32_t ranks : {2, 3, 4, 6, 8}) {
    std::vector<std::vector<int64_t>> all_homes;
    if (ranks == 3 || ranks == 4) all_homes = AwkwardHomes(test.lanes, test.grid.q_tokens, ranks);
    all_homes.emplace_back();
    for (size_t i = 0; i < AllPlanners(ranks).size() * all_homes.size(); ++i) {
      const PlannerSpec spec = AllPlanners(ranks)[i / all_homes.size()];
      test.homes = all_homes[i % all_homes.size()];
      SCOPED_TRACE(
          fmt::format("{} on {}, homes at {}", spec.Text(), ranks, fmt::join(test.homes, " ")));
      const Plan plan = MakePlan(spec.Text(), test.Masks(), workload.Options(ranks));
      const Program program = Lower(plan, test.Masks());
      const Accounts accounts =
          TakeAccounts(program, HomeMap(plan.problem()), test.mask, {.head_dim = test.head_dim});
      const Runs runs = RunOnRanks(workload, plan, ranks, {}, 1);
      for (size_t r = 0; r < runs.stats.size(); ++r) {
        EXPECT_EQ(runs.stats[r].bytes_sent, accounts.traffic.sent[r]) << "rank " << r;
        EXPECT_EQ(runs.stats[r].bytes_received, accounts.traffic.received[r]) << "rank " << r;
        EXPECT_EQ(runs.stats[r].buffer_bytes, accounts.buffer_bytes[r]) << "rank " << r;
      }
    }
  }
}

TEST(ExecutorOverlap, NothingUnderWayWhileComputingGivesTheSame) {
  for (const ExecCase& test : AwkwardCases()) {
    const ExecWorkload workload(test);
    for (const char* planner : {"fractional", "dbsp:2x2", "ring"}) {
      SCOPED_TRACE(test.name + " " + planner);
      const Plan plan = MakePlan(planner, test.Masks(), workload.Options(4));
      const Runs with = RunOnRanks(workload, plan, 4);
      const Runs without = RunOnRanks(workload, plan, 4, {.overlap = false});
      EXPECT_EQ(FirstDifference(with.result.out, without.result.out), "");
      EXPECT_EQ(FirstDifference(with.result.lse, without.result.lse), "");
    }
  }
}

// bf16 keeps 8 bits of every value: outputs, averages of values of size 1, move by a few
// hundredths, and no more.
TEST(ExecutorWire, Bf16IsNearAndHalvesTheBytes) {
  const std::vector<ExecCase> cases = AwkwardCases();
  for (const ExecCase& test : cases) {
    const ExecWorkload workload(test);
    const ExecResult want = workload.OnOneRank();
    for (const char* planner : {"fractional", "dbsp:2x2"}) {
      SCOPED_TRACE(test.name + " " + planner);
      const Plan plan = MakePlan(planner, test.Masks(), workload.Options(4));
      const Runs runs = RunOnRanks(workload, plan, 4, {.wire = DType::kBF16});
      const Runs exact = RunOnRanks(workload, plan, 4);
      EXPECT_EQ(FirstBeyondBound(runs.result.out, want.out, 0.15), "");
      for (size_t r = 0; r < runs.stats.size(); ++r)
        EXPECT_LT(runs.stats[r].bytes_sent,
                  0.6 * static_cast<double>(exact.stats[r].bytes_sent) + 1);
    }
  }
}

TEST(ExecutorAgreement, ADifferentMaskIsNamedWithItsRank) {
  const ExecCase test = AwkwardCases()[0];
  const ExecWorkload workload(test);
  const Plan plan = MakePlan("fractional", test.Masks(), workload.Options(3));
  BlockMask other = test.mask;
  other.Set(0, 0, 0, !other.Get(0, 0, 0));
  for (const bool differs : {false, true}) {
    std::string message;
    try {
      RunRanks(3, [&](Communicator& comm) {
        ThreadPool pool(1);
        Executor executor(comm, pool);
        executor.Prepare(plan, differs && comm.rank() == 2 ? LaneMasks(other) : test.Masks(),
                         test.head_dim);
      });
    } catch (const InputError& error) {
      message = error.what();
    }
    EXPECT_EQ(message, differs ? "[exec] rank 2 has another mask than rank 0; all ranks need the "
                                 "same"
                               : "");
  }
}

// Memory is there after the first run; layers and steps reuse it.
TEST(ExecutorBuffers, AreReused) {
  const ExecCase test = AwkwardCases()[4];
  const ExecWorkload workload(test);
  for (const char* planner : {"fractional", "dbsp:2x2"}) {
    const Plan plan = MakePlan(planner, test.Masks(), workload.Options(4));
    const Runs once = RunOnRanks(workload, plan, 4, {}, 1), often = RunOnRanks(workload, plan, 4);
    for (size_t r = 0; r < once.stats.size(); ++r)
      EXPECT_EQ(once.stats[r].allocated_bytes, often.stats[r].allocated_bytes);
  }
}

// Layers whose masks differ, step after step: none is worked out twice while there is room for all.
TEST(ExecutorMemory, RemembersEveryLayerThatFits) {
  constexpr int kLayers = 40;
  const ExecCase test = AwkwardCases()[0];
  std::vector<BlockMask> masks;
  for (uint64_t layer = 0; layer < kLayers; ++layer)
    masks.push_back(testing::RandomMask(test.lanes, test.grid, 0.4, 100 + layer));
  const ExecWorkload workload(test);
  const Plan plan = MakePlan("ulysses", masks[0], workload.Options(2));
  RunRanks(2, [&](Communicator& comm) {
    ThreadPool pool(1);
    Executor roomy(comm, pool);
    std::vector<std::shared_ptr<const Itinerary>> first;
    for (const BlockMask& mask : masks) first.push_back(roomy.Prepare(plan, mask, test.head_dim));
    for (size_t layer = 0; layer < masks.size(); ++layer)
      EXPECT_EQ(roomy.Prepare(plan, masks[layer], test.head_dim), first[layer]) << layer;

    // Most of an itinerary are its rows, four bytes for each kept block.
    const int64_t bytes = first[0]->Bytes();
    int64_t kept = 0;
    for (const RankStage& stage : first[0]->stages) kept += std::ssize(stage.rows.kv_blocks);
    EXPECT_GT(bytes, 4 * kept);
    EXPECT_LT(bytes, 100 * kept);

    Executor narrow(comm, pool, {.remembered_bytes = 3 * bytes});
    std::weak_ptr<const Itinerary> oldest = narrow.Prepare(plan, masks[0], test.head_dim);
    narrow.Prepare(plan, masks[1], test.head_dim);
    EXPECT_FALSE(oldest.expired());
    for (size_t layer = 2; layer < 6; ++layer) narrow.Prepare(plan, masks[layer], test.head_dim);
    EXPECT_TRUE(oldest.expired());
    const std::weak_ptr<const Itinerary> newest = narrow.Prepare(plan, masks[5], test.head_dim);
    EXPECT_FALSE(newest.expired());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExecutorTest, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11, 16));

}  // namespace
}  // namespace equitile
