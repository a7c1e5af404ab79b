#include "apps/cli/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "equitile/base/error.h"
#include "equitile/base/topology.h"

namespace equitile {
namespace {

TEST(Ranks, AloneUnlessAsked) {
  RunOnRanks({}, [](Communicator& comm, int threads) {
    EXPECT_EQ(comm.name(), "solo");
    EXPECT_EQ(threads, DefaultThreads());
  });
}

TEST(Ranks, ThreadsOfThisProcess) {
  std::atomic<int> sum = 0;
  RunOnRanks({.ranks = 3, .threads = {}}, [&](Communicator& comm, int threads) {
    EXPECT_EQ(comm.name(), "threads");
    EXPECT_EQ(comm.size(), 3);
    EXPECT_EQ(threads, std::max(1, DefaultThreads() / 3));
    sum += 1 + comm.rank();
  });
  EXPECT_EQ(sum, 6);
}

TEST(Ranks, AsManyThreadsAsAsked) {
  RunOnRanks({.ranks = 2, .threads = 5},
             [&](Communicator&, int threads) { EXPECT_EQ(threads, 5); });
}

TEST(Ranks, NotUnderALauncher) {
  setenv("PMIX_RANK", "1", 1);
  EXPECT_TRUE(UnderLauncher());
  EXPECT_FALSE(IsFirstProcess());
  EXPECT_THROW(RunOnRanks({.ranks = 2, .threads = {}}, [](Communicator&, int) {}), InputError);
  unsetenv("PMIX_RANK");
  EXPECT_FALSE(UnderLauncher());
  EXPECT_TRUE(IsFirstProcess());
}

}  // namespace
}  // namespace equitile
