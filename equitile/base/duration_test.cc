#include "equitile/base/duration.h"

#include <gtest/gtest.h>

#include <limits>

namespace equitile {
namespace {

TEST(Duration, ReadsAsPeopleSayIt) {
  EXPECT_EQ(DurationText(0.041), "0.041 s");
  EXPECT_EQ(DurationText(1.84), "1.8 s");
  EXPECT_EQ(DurationText(9.97), "10 s");
  EXPECT_EQ(DurationText(119.6), "120 s");
  EXPECT_EQ(DurationText(120.4), "2 min");
  EXPECT_EQ(DurationText(200), "3 min 20 s");
  EXPECT_EQ(DurationText(3599.7), "1 h");
  EXPECT_EQ(DurationText(11100), "3 h 5 min");
  EXPECT_EQ(DurationText(86399), "1 d");
  EXPECT_EQ(DurationText(290569), "3 d 9 h");
}

TEST(Duration, AnyNumberIsAText) {
  EXPECT_EQ(DurationText(0), "0 s");
  for (double seconds : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(DurationText(seconds), "");
  }
}

}  // namespace
}  // namespace equitile
