// Every plan on real processes against one kernel call; each rank looks at its own home.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "equitile/comm/mpi/mpi_testing.h"
#include "equitile/exec/exec_testing.h"
#include "equitile/exec/executor.h"

namespace equitile {
namespace {

using testing::ExecCase;
using testing::ExecResult;
using testing::ExecWorkload;

// How many of the elements at `at` are neither equal in bits nor, where a bound is allowed, within
// it.
int64_t Wrong(const std::vector<float>& got, const std::vector<float>& want, Range at,
              double bound) {
  int64_t wrong = 0;
  for (int64_t i = at.begin; i < at.end; ++i) {
    const float a = got[static_cast<size_t>(i)], b = want[static_cast<size_t>(i)];
    const bool same = std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    wrong += !same && !(std::abs(double{a} - b) <= bound);
  }
  return wrong;
}

int64_t WrongAtHome(const ExecCase& test, const ExecResult& got, const ExecResult& want,
                    const HomeRows& home, double bound) {
  const int64_t row = test.lanes.heads * test.head_dim;
  const int64_t all = test.lanes.batch * test.grid.q_tokens;
  int64_t wrong = 0;
  for (int64_t item = 0; item < test.lanes.batch; ++item) {
    const Range tokens = home.TokensOf(item);
    const Range line = {item * test.grid.q_tokens + tokens.begin,
                        item * test.grid.q_tokens + tokens.end};
    wrong += Wrong(got.out, want.out, {line.begin * row, line.end * row}, bound);
    for (int64_t head = 0; head < test.lanes.heads; ++head) {
      wrong += Wrong(got.lse, want.lse, {head * all + line.begin, head * all + line.end}, bound);
    }
  }
  return wrong;
}

TEST(ExecutorOnMpi, AllPlannersOnAwkwardShapes) {
  Communicator& comm = MpiTestRanks();
  ThreadPool pool(1);
  for (const ExecCase& test : testing::AwkwardCases()) {
    // Other numbers every other time: buffers and messages of one run must not reach into the
    // next.
    const ExecWorkload workloads[] = {ExecWorkload(test, 1), ExecWorkload(test, 2)};
    const ExecResult wants[] = {workloads[0].OnOneRank(), workloads[1].OnOneRank()};
    Executor executor(comm, pool);
    for (const PlannerSpec& spec : ParsePlanners("all", comm.size())) {
      SCOPED_TRACE(test.name + " " + spec.Text());
      const Plan plan = MakePlan(spec.Text(), test.Masks(), workloads[0].Options(comm.size()));
      const auto part = executor.Prepare(plan, test.Masks(), test.head_dim);
      for (const size_t i : {0, 1}) {
        ExecResult got = workloads[i].Empty();
        workloads[i].RunRank(executor, *part, got);
        const double bound = plan.SplitsRows()
                                 ? SplitRowBound(test.head_dim, test.grid.kv_tokens, plan.Stages(),
                                                 workloads[i].MaxScore(), workloads[i].MaxValue())
                                 : 0.0;
        EXPECT_EQ(WrongAtHome(test, got, wants[i], part->home_rows, bound), 0);
      }
    }
  }
}

}  // namespace
}  // namespace equitile
