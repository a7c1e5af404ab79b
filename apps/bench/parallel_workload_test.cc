// Right answers pass, on either wire and in integers; what a lost tile changes does not.
#include "apps/bench/parallel_workload.h"

#include <gtest/gtest.h>

#include <atomic>

#include "equitile/comm/threads/run_ranks.h"
#include "equitile/exec/faulty_testing.h"
#include "equitile/pattern/synthetic_mask.h"

namespace equitile {
namespace {

using testing::Fault;
using testing::FaultyCommunicator;

constexpr int64_t kHeadDim = 32;

enum class Outcome { kRight, kWrong, kNotSent };

// Of a run in which rank 1 loses a tile of its message number `message` (-1: of none).
Outcome RunWithFault(const BlockMask& mask, const std::string& planner, int32_t ranks, DType wire,
                     int64_t message, Compute compute = Compute::kF32) {
  const auto tile = compute == Compute::kF32
                        ? StripBytes(kHeadDim) / DTypeBytes(DType::kF32) * DTypeBytes(wire)
                        : StripBytes(kHeadDim, compute);
  std::atomic<bool> struck = false, wrong = false;
  RunRanks(ranks, [&](Communicator& comm) {
    FaultyCommunicator faulty(comm, comm.rank() == 1 ? Fault::kDropTile : Fault::kNone, message,
                              static_cast<size_t>(tile));
    PlanOptions options;
    options.ranks = comm.size();
    options.cluster.wire.head_dim = kHeadDim;
    ThreadPool pool(1);
    Executor executor(faulty, pool, {.wire = wire});
    const ParallelWorkload workload(mask, options, kHeadDim, comm.rank(), wire, compute, pool);
    const auto part = executor.Prepare(MakePlan(planner, mask, options), mask, kHeadDim, compute);
    executor.Run(*part, workload.Call());
    try {
      workload.Check(comm, *part, planner);
    } catch (const Error&) {
      wrong = true;  // on every rank
    }
    if (faulty.Struck()) struck = true;
  });
  if (message >= 0 && !struck) return Outcome::kNotSent;
  return wrong ? Outcome::kWrong : Outcome::kRight;
}

TEST(ParallelWorkload, RightAnswersPass) {
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 3},
                                          {.q_tokens = 500, .kv_tokens = 500, .block_tokens = 32});
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const char* planner : {"fractional", "ulysses", "ring"}) {
      for (const int32_t ranks : {1, 2, 3})
        EXPECT_EQ(RunWithFault(mask, planner, ranks, wire, -1), Outcome::kRight)
            << planner << ranks;
    }
  }
}

TEST(ParallelWorkload, RightAnswersPassInIntegersAndLostTilesDoNot) {
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 3},
                                          {.q_tokens = 500, .kv_tokens = 500, .block_tokens = 32});
  for (const Compute compute : {Compute::kInt16, Compute::kInt8}) {
    for (const char* planner : {"fractional", "ulysses", "ring"}) {
      int64_t noticed = 0;
      EXPECT_EQ(RunWithFault(mask, planner, 3, DType::kF32, -1, compute), Outcome::kRight);
      for (int64_t message = 0; message < 12; ++message) {
        noticed += RunWithFault(mask, planner, 3, DType::kF32, message, compute) == Outcome::kWrong;
      }
      // 16 of 500 keys are less than what int8 may be off.
      EXPECT_EQ(noticed > 0, compute == Compute::kInt16) << planner << ComputeName(compute);
    }
  }
}

// Only some queries are looked at; what they show with f32 they show with bf16.
TEST(ParallelWorkload, ALostTileIsNoticed) {
  const BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 2},
                                          {.q_tokens = 700, .kv_tokens = 700, .block_tokens = 64});
  for (const char* planner : {"ulysses", "ring"}) {
    int64_t noticed = 0;
    for (int64_t message = 0; message < 100; ++message) {
      const Outcome f32 = RunWithFault(mask, planner, 3, DType::kF32, message);
      if (f32 == Outcome::kNotSent) break;
      EXPECT_EQ(RunWithFault(mask, planner, 3, DType::kBF16, message), f32) << planner << message;
      noticed += f32 == Outcome::kWrong;
    }
    EXPECT_GT(noticed, 0) << planner;
  }
}

}  // namespace
}  // namespace equitile
