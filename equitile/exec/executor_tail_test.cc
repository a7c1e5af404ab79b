// Skipped blocks that count by their means, and masses of kept ones, over ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "equitile/comm/threads/run_ranks.h"
#include "equitile/exec/exec_testing.h"
#include "equitile/plan/core/validate.h"
#include "equitile/plan/predict/accounts.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

using testing::AwkwardCases;
using testing::ExecCase;
using testing::ExecResult;
using testing::ExecWorkload;

// Every other lane has a tail, then all of them.
std::vector<ExecCase> TailCases() {
  std::vector<ExecCase> cases;
  for (ExecCase test : AwkwardCases()) {
    for (const bool all : {false, true}) {
      test.tails.clear();
      for (int64_t lane = 0; lane < test.lanes.Count(); ++lane)
        test.tails.push_back(all || lane % 2 == 1 ? Tail::kMean : Tail::kNone);
      cases.push_back(test);
    }
  }
  return cases;
}

ExecResult RunTails(const ExecWorkload& workload, const Plan& plan, int32_t ranks,
                    int threads = 1) {
  ExecResult result = workload.Empty();
  RunRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(threads);
    Executor executor(comm, pool);
    const ExecCase& test = workload.test();
    workload.RunRank(executor, *executor.Prepare(plan, test.Masks(), test.head_dim), result);
  });
  return result;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // also -inf
    const double off = std::abs(double{a[i]} - double{b[i]});
    largest = std::isfinite(off) ? std::max(largest, off) : 1e30;
  }
  return largest;
}

TEST(ExecutorTails, GiveTheSameBitsOnAnyRanksAndThreads) {
  for (const ExecCase& test : TailCases()) {
    const ExecWorkload workload(test);
    const ExecResult one =
        RunTails(workload, MakePlan("ulysses", test.Masks(), workload.Options(1)), 1);
    for (const int32_t ranks : {1, 2, 3, 5, 8}) {
      for (const char* planner : {"ulysses", "fractional"}) {
        SCOPED_TRACE(fmt::format("{} {} on {}", test.name, planner, ranks));
        const Plan plan = MakePlan(planner, test.Masks(), workload.Options(ranks));
        const ExecResult many = RunTails(workload, plan, ranks, ranks == 2 ? 3 : 1);
        EXPECT_EQ(LargestDifference(many.out, one.out), 0);
        EXPECT_EQ(LargestDifference(many.lse, one.lse), 0);
      }
    }
  }
}

TEST(ExecutorTails, GiveTheSameBitsWhereverHomesAreCut) {
  for (ExecCase test : TailCases()) {
    const ExecWorkload workload(test);
    const ExecResult one =
        RunTails(workload, MakePlan("ulysses", test.Masks(), workload.Options(1)), 1);
    for (const std::vector<int64_t>& homes :
         testing::AwkwardHomes(test.lanes, test.grid.q_tokens, 3)) {
      SCOPED_TRACE(fmt::format("{} homes at {}", test.name, fmt::join(homes, " ")));
      test.homes = homes;
      const Plan plan = MakePlan("fractional", test.Masks(), workload.Options(3));
      const ExecResult many = RunTails(workload, plan, 3);
      EXPECT_EQ(LargestDifference(many.out, one.out), 0);
      EXPECT_EQ(LargestDifference(many.lse, one.lse), 0);
    }
    test.homes.clear();
  }
}

// Sums in another order are another rounding of the same means; rings merge on top of it.
TEST(ExecutorTails, AgreeWithTheKernelsOwnMeansAndWithRings) {
  for (const ExecCase& test : TailCases()) {
    const ExecWorkload workload(test);
    const ExecResult kernel = workload.OnOneRank();
    const double bound = SplitRowBound(test.head_dim, test.grid.kv_tokens + 1, 4,
                                       workload.MaxScore(), workload.MaxValue());
    for (const char* planner : {"fractional", "ring", "usp:2x2", "dbsp:2x2", "dbsp+:1x4"}) {
      SCOPED_TRACE(fmt::format("{} {}", test.name, planner));
      const Plan plan = MakePlan(planner, test.Masks(), workload.Options(4));
      const ExecResult many = RunTails(workload, plan, 4);
      EXPECT_LT(LargestDifference(many.out, kernel.out), bound);
      EXPECT_LT(LargestDifference(many.lse, kernel.lse), bound);
    }
  }
}

TEST(ExecutorTails, AreValidatedAndCounted) {
  for (const ExecCase& test : TailCases()) {
    const ExecWorkload workload(test);
    const LaneMasks masks = test.Masks();
    RowCounts rows(test.mask);
    for (const PlannerSpec& spec : ParsePlanners("ulysses,ring,fractional,usp:3x2", 6)) {
      SCOPED_TRACE(fmt::format("{} {}", test.name, spec.Text()));
      const PlanOptions options = workload.Options(6);
      const Plan plan = MakePlan(spec, masks, rows, options).plan;
      Program program = Lower(plan, masks);
      EXPECT_EQ(Validate(program, masks), std::nullopt);
      const WireFormat wire{.head_dim = test.head_dim};
      Cluster cluster;
      cluster.wire = wire;
      const Accounts accounts = TakeAccounts(program, HomeMap(plan.problem()), test.mask, wire);
      EXPECT_EQ(accounts.traffic, ScorePlan(plan, masks, rows, {}, cluster).traffic);
      // Means that do not travel are missed, where a row with a tail skips something.
      for (Transfer& transfer : program.transfers) {
        if (transfer.cargo == Cargo::kMeans) transfer.blocks.count = 0;
      }
      const bool skips = test.mask.Density() < 1 && test.lanes.Count() > 1;
      if (skips) EXPECT_NE(Validate(program, masks), std::nullopt);
    }
  }
}

TEST(ExecutorTails, RefuseWhatCannotBeSummed) {
  ExecCase test = TailCases()[1];
  ExecWorkload workload(test);
  workload.SetKey(5, 1e30f);
  const Plan plan = MakePlan("fractional", test.Masks(), workload.Options(3));
  EXPECT_THROW(RunTails(workload, plan, 3), InputError);
}

TEST(ExecutorMasses, AreTheRowsOfAllRanksAndSumToOne) {
  for (ExecCase test : AwkwardCases()) {
    test.mask = BlockMask::Dense(test.lanes, test.grid);
    const ExecWorkload workload(test);
    std::map<std::pair<int32_t, int32_t>, std::vector<float>> one;
    for (const int32_t ranks : {1, 3, 8}) {
      SCOPED_TRACE(fmt::format("{} on {}", test.name, ranks));
      std::map<std::pair<int32_t, int32_t>, std::vector<float>> all;
      std::mutex mutex;
      ExecResult result = workload.Empty();
      const Plan plan = MakePlan("fractional", test.Masks(), workload.Options(ranks));
      RunRanks(ranks, [&](Communicator& comm) {
        ThreadPool pool(2);
        Executor executor(comm, pool);
        std::vector<RowMasses> masses;
        workload.RunRank(executor, *executor.Prepare(plan, test.Masks(), test.head_dim), result,
                         &masses);
        const std::lock_guard lock(mutex);
        for (const RowMasses& row : masses) {
          EXPECT_TRUE(all.try_emplace({row.lane, row.q_block}, row.masses).second);
          double sum = 0;
          for (const float mass : row.masses) sum += double{mass};
          EXPECT_NEAR(sum, 1, 1e-4);
        }
      });
      EXPECT_EQ(std::ssize(all), test.lanes.Count() * test.grid.QBlocks());
      if (one.empty()) one = all;
      EXPECT_EQ(all, one);
    }
  }
}

}  // namespace
}  // namespace equitile
