#include "equitile/quality/mean_interval.h"

#include <gtest/gtest.h>

#include <vector>

namespace equitile {
namespace {

// scipy.stats.t.ppf(0.975, degrees)
TEST(MeanInterval, QuantilesOfStudent) {
  for (const auto& [degrees, t] : {std::pair<int64_t, double>{1, 12.706204736},
                                   {2, 4.302652730},
                                   {3, 3.182446305},
                                   {4, 2.776445105},
                                   {5, 2.570581836},
                                   {10, 2.228138852},
                                   {99, 1.984216952},
                                   {1000, 1.962339081}}) {
    EXPECT_NEAR(StudentT95(degrees), t, 1e-8) << degrees;
  }
}

TEST(MeanInterval, MeansAndRatios) {
  const std::vector<double> values = {1, 2, 3, 6};
  const MeanInterval mean = MeanWithInterval(values);
  EXPECT_DOUBLE_EQ(mean.mean, 3);
  // deviation sqrt(14 / 3), t(3) = 3.1824
  EXPECT_NEAR(*mean.high - mean.mean, 3.43743488, 1e-6);
  EXPECT_NEAR(mean.mean - *mean.low, 3.43743488, 1e-6);
  EXPECT_FALSE(MeanWithInterval(std::vector<double>{5}).low.has_value());

  const MeanInterval ratio = RatioWithInterval(std::vector<double>{2, 8});
  const MeanInterval inverse = RatioWithInterval(std::vector<double>{0.5, 0.125});
  EXPECT_NEAR(ratio.mean, 4, 1e-12);
  EXPECT_NEAR(*ratio.low * *inverse.high, 1, 1e-9);
}

}  // namespace
}  // namespace equitile
