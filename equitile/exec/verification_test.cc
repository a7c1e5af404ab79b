// Right plans pass; a message in which one tile is dropped, swapped or altered does not.
#include "equitile/exec/verification.h"

#include <gtest/gtest.h>

#include <atomic>

#include "equitile/comm/threads/run_ranks.h"
#include "equitile/exec/exec_testing.h"
#include "equitile/exec/faulty_testing.h"

namespace equitile {
namespace {

using testing::Fault;
using testing::FaultyCommunicator;

class VerificationTest : public ::testing::Test {
 protected:
  static constexpr int64_t kHeadDim = 16;

  VerificationTest() : pool_(1), verification_(Mask(), Options(), pool_) {}

  static BlockMask Mask() {
    const Lanes lanes{.batch = 1, .heads = 5};
    const BlockGrid grid{.q_tokens = 500, .kv_tokens = 500, .block_tokens = 32};
    return testing::RandomMask(lanes, grid, 0.6, 3);
  }
  static Verification::Options Options() {
    Verification::Options options;
    options.head_dim = kHeadDim;
    options.plan.cluster.wire.head_dim = kHeadDim;
    return options;
  }

  // Of the case in which rank 1 spoils its message number `message`.
  VerifyCase Check(const std::string& planner, int32_t ranks, Fault fault, int64_t message,
                   bool* struck = nullptr) {
    VerifyCase result;
    std::atomic<bool> hit = false;
    RunRanks(ranks, [&](Communicator& comm) {
      FaultyCommunicator faulty(comm, comm.rank() == 1 ? fault : Fault::kNone, message,
                                static_cast<size_t>(StripBytes(kHeadDim)));
      ThreadPool pool(1);
      const VerifyCase mine = verification_.Check(faulty, pool, ParsePlanner(planner, comm.size()));
      if (comm.rank() == 0) result = mine;
      if (faulty.Struck()) hit = true;
      comm.Barrier();
    });
    if (struck != nullptr) *struck = hit;
    return result;
  }

  ThreadPool pool_;
  Verification verification_;
};

TEST_F(VerificationTest, OneRankIsRight) {
  EXPECT_TRUE(verification_.OneRankOk());
  EXPECT_GE(verification_.RowsChecked(), 64);
}

TEST_F(VerificationTest, OneRankGivesSignsOfLife) {
  int polls = 0;
  auto poll = [&] { ++polls; };
  // Everything but attention is one task here, between whose tasks nobody polls.
  const BlockGrid one{.q_tokens = 200, .kv_tokens = 200, .block_tokens = 256};
  Verification(BlockMask::Dense({}, one), Options(), pool_, poll);
  EXPECT_GT(polls, 0);
  polls = 0;
  // And between tasks.
  Verification(BlockMask({.batch = 1, .heads = 40}, one), Options(), pool_, poll);
  EXPECT_GT(polls, 0);
  polls = 0;
  pool_.ParallelFor(2, [](int64_t, int) {});
  EXPECT_EQ(polls, 0);
  EXPECT_THROW(Verification(Mask(), Options(), pool_, [] { throw Error("another rank failed"); }),
               Error);
}

TEST_F(VerificationTest, AllPlannersKeepTheirPromise) {
  for (const int32_t ranks : {1, 2, 4}) {
    for (const PlannerSpec& spec : ParsePlanners("all", ranks)) {
      const VerifyCase result = Check(spec.Text(), ranks, Fault::kNone, 0);
      EXPECT_TRUE(result.ok) << spec.Text() << " on " << ranks << ": " << result.max_error;
      if (spec.kind == PlannerKind::kDbspAuto) continue;  // may choose either
      const bool splits = spec.kind == PlannerKind::kRing || spec.ring > 1;
      EXPECT_EQ(result.same_bits, !splits || ranks == 1) << spec.Text() << " on " << ranks;
    }
  }
}

// Inputs, passes of a ring and outputs: whichever message it is.
TEST_F(VerificationTest, SpoiltMessagesAreNoticed) {
  for (const char* planner : {"fractional", "ulysses", "ring", "usp:2x2", "dbsp:2x2"}) {
    for (const Fault fault : {Fault::kDropTile, Fault::kSwapTiles, Fault::kAlterValue}) {
      int64_t noticed = 0;
      for (int64_t message = 0;; ++message) {
        bool struck = false;
        const VerifyCase result = Check(planner, 4, fault, message, &struck);
        if (!struck) break;
        EXPECT_FALSE(result.ok) << planner << ", fault " << static_cast<int>(fault) << ", message "
                                << message;
        ++noticed;
      }
      EXPECT_GT(noticed, 0) << planner;
    }
  }
}

}  // namespace
}  // namespace equitile
