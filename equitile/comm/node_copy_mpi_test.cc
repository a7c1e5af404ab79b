// One copy of weights among real processes: filled by one of them, mapped by the others, and gone
// with the last.
#include <gtest/gtest.h>

#include <cstring>

#include "equitile/comm/mpi/mpi_testing.h"
#include "equitile/comm/node_copy.h"

namespace equitile {
namespace {

constexpr int64_t kBytes = 5'000'011;  // more than a huge page, and no multiple of any page

std::byte ByteAt(size_t i) { return static_cast<std::byte>(i * 7 + i / 4096); }

// All processes of this test run on one machine.
TEST(NodeCopyOnMpi, FilledByOneProcessAndReadByAll) {
  Communicator& comm = MpiTestRanks();
  uint64_t fills = 0;
  const NodeCopy copy(comm, kBytes, [&](std::span<std::byte> to) {
    ++fills;
    for (size_t i = 0; i < to.size(); ++i) to[i] = ByteAt(i);
  });
  ASSERT_EQ(static_cast<int64_t>(copy.bytes().size()), kBytes);
  int64_t wrong = 0;
  for (size_t i = 0; i < copy.bytes().size(); ++i) wrong += copy.bytes()[i] != ByteAt(i);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(copy.shared(), comm.size() > 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.bytes().data()) % 64, 0u);
  comm.AllReduce(std::span(&fills, 1), Reduce::kSum);
  EXPECT_EQ(fills, 1u);
}

TEST(NodeCopyOnMpi, SeveralOneAfterTheOther) {
  Communicator& comm = MpiTestRanks();
  NodeCopy copy;
  for (int round = 1; round <= 3; ++round) {
    copy = NodeCopy(comm, 1000 * round,
                    [&](std::span<std::byte> to) { std::memset(to.data(), round, to.size()); });
    EXPECT_EQ(std::to_integer<int>(copy.bytes().front()), round);
    EXPECT_EQ(std::to_integer<int>(copy.bytes().back()), round);
  }
}

}  // namespace
}  // namespace equitile
