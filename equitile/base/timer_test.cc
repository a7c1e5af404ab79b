#include "equitile/base/timer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace equitile {
namespace {

TEST(Timer, StopwatchCountsSecondsAndRestarts) {
  Stopwatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double first = watch.Seconds();
  EXPECT_GE(first, 0.020);
  EXPECT_GE(watch.Seconds(), first);
  const double before = NowSeconds();
  watch.Restart();
  EXPECT_LE(watch.Seconds(), NowSeconds() - before);
}

}  // namespace
}  // namespace equitile
