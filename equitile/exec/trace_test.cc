// Spans of a run: of all ranks, in time, nested.
#include "equitile/exec/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "equitile/exec/exec_testing.h"

namespace equitile {
namespace {

using testing::AwkwardCases;
using testing::ExecCase;
using testing::ExecResult;
using testing::ExecWorkload;

bool IsTransfer(const TraceSpan& span) {
  return span.event.kind == RunEvent::Kind::kSend || span.event.kind == RunEvent::Kind::kReceive;
}

TEST(TraceTest, SpansOfAllRanksNest) {
  constexpr int32_t kRanks = 4;
  const ExecCase test = AwkwardCases()[0];
  const ExecWorkload workload(test);
  for (const char* planner : {"fractional", "dbsp:2x2"}) {
    const Plan plan = MakePlan(planner, test.Masks(), workload.Options(kRanks));
    ExecResult result = workload.Empty();
    std::vector<std::vector<TraceSpan>> ranks;
    RunRanks(kRanks, [&](Communicator& comm) {
      ThreadPool pool(1);
      Executor executor(comm, pool);
      Trace trace(comm);
      const auto part = executor.Prepare(plan, test.Masks(), test.head_dim);
      for (int32_t step = 0; step < 2; ++step) {
        workload.RunRank(executor, *part, result);
        trace.Add(executor.LastRun(), step, 0);
      }
      auto gathered = trace.Gather();
      if (comm.rank() == 0) ranks = std::move(gathered);
    });
    ASSERT_EQ(ranks.size(), size_t{kRanks});
    for (const auto& spans : ranks) {
      std::vector<TraceSpan> own;
      int64_t computes = 0, transfers = 0;
      for (const TraceSpan& span : spans) {
        EXPECT_GE(span.event.begin, 0);
        EXPECT_GE(span.event.end, span.event.begin);
        computes += span.event.kind == RunEvent::Kind::kCompute;
        transfers += IsTransfer(span) && span.event.bytes > 0;
        if (!IsTransfer(span)) own.push_back(span);
      }
      EXPECT_GE(computes, 2);
      EXPECT_GT(transfers, 0);
      // What a rank's thread does comes one after the other.
      std::stable_sort(own.begin(), own.end(), [](const TraceSpan& a, const TraceSpan& b) {
        return a.event.begin < b.event.begin;
      });
      for (size_t i = 1; i < own.size(); ++i)
        EXPECT_LE(own[i - 1].event.end, own[i].event.begin) << planner;
    }
  }
}

}  // namespace
}  // namespace equitile
