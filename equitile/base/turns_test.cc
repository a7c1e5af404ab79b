#include "equitile/base/turns.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "equitile/base/timer.h"

namespace equitile {
namespace {

TEST(Turns, AreTakenInOrderAtLeastOnce) {
  std::vector<size_t> order;
  std::vector<TurnTimes> times(3);
  TimeInTurns(
      2, 0, [&](size_t work) { order.push_back(work); }, times);
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2}));
  TimeInTurns(
      2, 1e-3, [&](size_t work) { order.push_back(work); }, times);
  ASSERT_EQ(order.size() % 3, 0U);
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i % 3);
  for (const TurnTimes& time : times) EXPECT_EQ(time.seconds.size(), order.size() / 3);
}

// Waiting stands for other work on the machine: only on several threads does it count.
TEST(Turns, OneThreadIsTimedByItsProcessor) {
  std::vector<TurnTimes> one(1), several(1);
  const auto wait = [](size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  TimeInTurns(1, 0, wait, one);
  TimeInTurns(2, 0, wait, several);
  EXPECT_LT(one[0].least, 0.01);
  EXPECT_GE(several[0].least, 0.02);
  EXPECT_GE(one[0].seconds[0], 0.02);
}

}  // namespace
}  // namespace equitile
