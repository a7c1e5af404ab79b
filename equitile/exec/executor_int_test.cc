// Attention in integers on many ranks: strips travel as they are computed, output in 16 bits, and
// give the bits of one kernel call with its output rounded so.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/exec/exec_testing.h"
#include "equitile/kernel/rows/short_rows.h"
#include "equitile/plan/predict/accounts.h"

namespace equitile {
namespace {

using testing::AwkwardCases;
using testing::AwkwardHomes;
using testing::ExecCase;
using testing::ExecResult;
using testing::ExecWorkload;

int64_t Differences(const std::vector<float>& got, const std::vector<float>& want) {
  int64_t count = 0;
  for (size_t i = 0; i < want.size(); ++i)
    count += std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]);
  return count;
}

double LargestDifference(const std::vector<float>& got, const std::vector<float>& want) {
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) largest = std::max(largest, std::abs(double{got[i]} - want[i]));
  }
  return largest;
}

// What the executor gives: output that has been rounded as if it had travelled.
ExecResult AtHome(ExecResult result, int64_t head_dim) {
  RoundToShort(result.out.data(), std::ssize(result.out) / head_dim, head_dim, head_dim);
  return result;
}

struct IntRuns {
  ExecResult result;
  int64_t bytes_sent = 0;
};

IntRuns RunOnRanks(const ExecWorkload& workload, const Plan& plan, int32_t ranks, Compute compute) {
  IntRuns runs{.result = workload.Empty()};
  std::vector<int64_t> sent(static_cast<size_t>(ranks), 0);
  RunRanks(ranks,
           [&](Communicator& comm) {
             ThreadPool pool(1);
             Executor executor(comm, pool);
             const auto part =
                 executor.Prepare(plan, workload.test().Masks(), workload.test().head_dim, compute);
             sent[static_cast<size_t>(comm.rank())] =
                 workload.RunRank(executor, *part, runs.result).bytes_sent;
           },
           {.watchdog_seconds = 60, .on_lost = {}});
  for (int64_t bytes : sent) runs.bytes_sent += bytes;
  return runs;
}

class ExecutorInIntegers : public ::testing::TestWithParam<int32_t> {};

TEST_P(ExecutorInIntegers, GivesTheBitsOfOneCall) {
  const int32_t ranks = GetParam();
  for (ExecCase& test : AwkwardCases()) {
    if (test.name == "WideBlocks" || test.name == "Nothing") continue;
    const Compute compute = test.head_dim % 32 == 0 ? Compute::kInt16 : Compute::kInt8;
    if (test.name == "Primes") test.tails.assign(7, Tail::kMean);
    const ExecWorkload workload(test);
    // The executor makes means from exact sums, a lone call of the kernel in f32.
    const ExecResult want =
        test.tails.empty()
            ? AtHome(workload.OnOneRank(compute), test.head_dim)
            : RunOnRanks(workload, MakePlan("ulysses", test.Masks(), workload.Options(1)), 1,
                         compute)
                  .result;
    for (const char* planner : {"fractional", "ulysses", "ring"}) {
      SCOPED_TRACE(test.name + " " + planner);
      const Plan plan = MakePlan(planner, test.Masks(), workload.Options(ranks));
      const IntRuns runs = RunOnRanks(workload, plan, ranks, compute);
      if (plan.SplitsRows()) {
        // Other chunks, so other maxima to round weights by.
        const double bound = SplitRowBound(test.head_dim, test.grid.kv_tokens, plan.Stages(),
                                           workload.MaxScore(), workload.MaxValue(), compute);
        EXPECT_LT(bound, compute == Compute::kInt8 ? 0.12 : 8e-3);
        EXPECT_LT(LargestDifference(runs.result.out, want.out), bound);
        EXPECT_LT(LargestDifference(runs.result.lse, want.lse), bound);
      } else {
        EXPECT_EQ(Differences(runs.result.out, want.out), 0);
        EXPECT_EQ(Differences(runs.result.lse, want.lse), 0);
      }
    }
  }
}

// Homes cut inside strips: tokens travel alone and are rounded where they arrive.
TEST_P(ExecutorInIntegers, GivesTheBitsOfOneCallFromAwkwardHomes) {
  const int32_t ranks = GetParam();
  for (ExecCase& test : AwkwardCases()) {
    if (test.name != "BatchOfTwo") continue;
    for (const auto& homes : AwkwardHomes(test.lanes, test.grid.q_tokens, ranks)) {
      test.homes = homes;
      const ExecWorkload workload(test);
      const ExecResult want = AtHome(workload.OnOneRank(Compute::kInt8), test.head_dim);
      const Plan plan = MakePlan("fractional", test.Masks(), workload.Options(ranks));
      const IntRuns runs = RunOnRanks(workload, plan, ranks, Compute::kInt8);
      EXPECT_EQ(Differences(runs.result.out, want.out), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExecutorInIntegers, ::testing::Values(1, 2, 3, 5),
                         [](const auto& info) { return std::to_string(info.param); });

class ExecutorInIntegersBytes : public ::testing::TestWithParam<TokenOrder> {};

// In another order than the homes' a token travels alone, with its own scale: the same bytes.
TEST_P(ExecutorInIntegersBytes, AreWhatThePlanSays) {
  const ExecCase test = {
      .name = "Even",
      .lanes = {.batch = 1, .heads = 4},
      .grid = {.q_tokens = 512, .kv_tokens = 512, .block_tokens = 64},
      .head_dim = 64,
      .mask = BlockMask::Dense({.batch = 1, .heads = 4},
                               {.q_tokens = 512, .kv_tokens = 512, .block_tokens = 64}),
      .token_grid = {.frames = 8, .height = 8, .width = 8},
      .orders = std::vector<TokenOrder>(4, GetParam())};
  const ExecWorkload workload(test);
  const Plan plan = MakePlan("ulysses", test.Masks(), workload.Options(4));
  int64_t last = 0;
  for (Compute compute : {Compute::kF32, Compute::kInt16, Compute::kInt8}) {
    const WireFormat wire = WireFormatOf(64, DType::kF32, compute);
    const HomeMap homes(plan.problem());
    const Traffic traffic = CountTraffic(plan, homes, test.mask, wire);
    int64_t predicted = 0;
    for (int64_t bytes : traffic.sent) predicted += bytes;
    const int64_t sent = RunOnRanks(workload, plan, 4, compute).bytes_sent;
    EXPECT_EQ(sent, predicted) << ComputeName(compute);
    EXPECT_TRUE(last == 0 || sent < last);
    last = sent;
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, ExecutorInIntegersBytes,
                         ::testing::Values(ParseTokenOrder("fhw"), ParseTokenOrder("hwf")),
                         [](const auto& info) { return TokenOrderName(info.param); });

TEST(ExecutorInIntegersWire, RoundsNothingTwice) {
  const auto cases = AwkwardCases();
  const ExecWorkload workload(cases[1]);
  const Plan plan = MakePlan("fractional", cases[1].Masks(), workload.Options(1));
  SoloCommunicator comm;
  ThreadPool pool(1);
  Executor executor(comm, pool, {.wire = DType::kBF16});
  EXPECT_THROW(executor.Prepare(plan, cases[1].Masks(), 16, Compute::kInt8), InputError);
}

}  // namespace
}  // namespace equitile
