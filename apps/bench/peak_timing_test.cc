#include "apps/bench/peak_timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace equitile {
namespace {

TEST(TimeBesidePeak, GivesTheMedian) {
  ThreadPool pool(1);
  int runs = 0;
  const PeakTiming timing = TimeBesidePeak(pool, [&] {  // some runs are disturbed
    std::this_thread::sleep_for(std::chrono::milliseconds(++runs % 5 == 0 ? 400 : 100));
  });
  EXPECT_EQ(timing.runs, runs);
  EXPECT_GE(timing.runs, 5);
  EXPECT_GE(timing.seconds, 0.1);
  EXPECT_LT(timing.seconds, 0.3);
  EXPECT_LE(timing.least, timing.seconds);
  EXPECT_GT(timing.peak_gflops, 0.0);
}

TEST(TimeInTurnsBesidePeak, WorksTakeTurnsAndTheLeastOfEachCounts) {
  ThreadPool pool(2);
  std::vector<size_t> order;
  const std::vector<PeakTiming> timings = TimeInTurnsBesidePeak(pool, 3, [&](size_t work) {
    order.push_back(work);
    const auto disturbance = order.size() % 4 == 0 ? 100 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + 20 * work + disturbance));
  });
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i % 3);
  ASSERT_EQ(timings.size(), 3u);
  for (size_t work = 0; work < 3; ++work) {
    EXPECT_EQ(timings[work].runs, std::ssize(order) / 3);
    EXPECT_GE(timings[work].least, 0.01 + 0.02 * static_cast<double>(work));
    EXPECT_LT(timings[work].least, 0.1);
  }
}

TEST(TimeInTurnsBesidePeak, OneThreadCountsItsProcessorTime) {
  ThreadPool pool(1);
  const std::vector<PeakTiming> timings = TimeInTurnsBesidePeak(
      pool, 1, [](size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
  EXPECT_GE(timings[0].seconds, 0.03);
  EXPECT_LT(timings[0].least, 0.01);
}

TEST(TimeBesidePeak, RepeatsShortWorkAndReports) {
  ThreadPool pool(1);
  int64_t last = 0, last_total = 0;
  const PeakTiming timing = TimeBesidePeak(
      pool, [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); },
      [&](int64_t done, int64_t total) {
        EXPECT_EQ(done, last + 1);
        EXPECT_GE(total, done);
        last = done;
        last_total = total;
      });
  EXPECT_EQ(last, last_total);
  EXPECT_GE(timing.runs, 2 * last);
}

}  // namespace
}  // namespace equitile
