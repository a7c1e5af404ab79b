#include "equitile/comm/watchdog.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

TEST(Watchdog, MissingOnlyAfterTheLimit) {
  Watchdog dog(10, 100);
  for (double now = 101; now <= 115; ++now) dog.Due(now);
  EXPECT_FALSE(dog.Missing(105, 115));
  EXPECT_TRUE(dog.Missing(104.9, 115));
}

TEST(Watchdog, WhoeverWasAwayJudgesNobodyAtOnce) {
  Watchdog dog(10, 100);
  dog.Due(101);
  dog.Due(201);
  EXPECT_FALSE(dog.Missing(101, 201));
  for (double now = 202; now <= 212; ++now) dog.Due(now);
  EXPECT_TRUE(dog.Missing(101, 212));
}

TEST(Watchdog, IsDueAtMostEveryTenthOfTheLimit) {
  Watchdog dog(10, 0);
  int due = 0;
  for (int i = 1; i <= 1000; ++i) due += dog.Due(i * 0.01);
  EXPECT_GE(due, 9);
  EXPECT_LE(due, 10);
}

TEST(Watchdog, OffWatchesNobody) {
  Watchdog dog(0, 0);
  EXPECT_FALSE(dog.Due(1e9));
  EXPECT_FALSE(dog.Missing(0, 1e9));
}

}  // namespace
}  // namespace equitile
