#include "equitile/comm/node_copy.h"

#include <gtest/gtest.h>

#include <atomic>

#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/comm/threads/run_ranks.h"

namespace equitile {
namespace {

constexpr int64_t kBytes = 100'003;

void Fill(std::span<std::byte> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::byte>(i * 7);
}

bool Right(std::span<const std::byte> bytes) {
  bool right = static_cast<int64_t>(bytes.size()) == kBytes;
  for (size_t i = 0; i < bytes.size(); ++i) right &= bytes[i] == static_cast<std::byte>(i * 7);
  return right;
}

TEST(NodeCopy, OneRankHasItsOwn) {
  SoloCommunicator comm;
  const NodeCopy copy(comm, kBytes, [](std::span<std::byte> to) { Fill(to); });
  EXPECT_FALSE(copy.shared());
  EXPECT_TRUE(Right(copy.bytes()));
}

TEST(NodeCopy, FilledOncePerNode) {
  for (int32_t ranks : {2, 3, 5}) {
    std::atomic<int> fills = 0, right = 0, shared = 0;
    RunRanks(ranks, [&](Communicator& comm) {
      auto fill = [&](std::span<std::byte> to) {
        ++fills;
        Fill(to);
      };
      NodeCopy copy(comm, kBytes, fill);
      const NodeCopy moved = std::move(copy);
      right += Right(moved.bytes());
      shared += moved.shared();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(moved.bytes().data()) % 64, 0u);
      comm.Barrier();
    });
    EXPECT_EQ(fills, 1);
    EXPECT_EQ(right, ranks);
    EXPECT_EQ(shared, ranks);
  }
}

TEST(NodeCopy, AFailureReachesEveryRank) {
  auto body = [](Communicator& comm) {
    const NodeCopy copy(comm, kBytes, [](std::span<std::byte>) {
      throw InputError("[model] a tensor: holds NaN");
    });
  };
  EXPECT_THROW(RunRanks(3, body), InputError);
}

}  // namespace
}  // namespace equitile
