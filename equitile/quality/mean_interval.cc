#include "equitile/quality/mean_interval.h"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// P(|T| < t): the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4).
double Within(double t, int64_t degrees) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double c2 = std::cos(angle) * std::cos(angle);
  const bool odd = degrees % 2 != 0;
  double term = odd ? std::cos(angle) : 1.0, sum = degrees == 1 ? 0.0 : term;
  for (int64_t i = odd ? 3 : 2; i < degrees; i += 2) {
    term *= c2 * static_cast<double>(i - 1) / static_cast<double>(i);
    sum += term;
  }
  const double series = std::sin(angle) * sum;
  return odd ? 2.0 / std::numbers::pi * (angle + series) : series;
}

}  // namespace

double StudentT95(int64_t degrees) {
  EQ_CHECK(degrees >= 1);
  double low = 1.9, high = 13.0;  // t falls from 12.7 (1 degree) to 1.96 (many)
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (Within(middle, degrees) < 0.95 ? low : high) = middle;
  }
  return low;
}

MeanInterval MeanWithInterval(std::span<const double> values) {
  EQ_CHECK(!values.empty());
  const auto count = static_cast<double>(values.size());
  double mean = 0.0, squares = 0.0;
  for (double value : values) mean += value / count;
  for (double value : values) squares += (value - mean) * (value - mean);
  if (values.size() == 1) return {.mean = mean, .low = {}, .high = {}};
  const double half =
      StudentT95(std::ssize(values) - 1) * std::sqrt(squares / (count - 1.0) / count);
  return {.mean = mean, .low = mean - half, .high = mean + half};
}

MeanInterval RatioWithInterval(std::span<const double> ratios) {
  std::vector<double> logs;
  for (double ratio : ratios) logs.push_back(std::log(ratio));
  MeanInterval interval = MeanWithInterval(logs);
  interval.mean = std::exp(interval.mean);
  if (interval.low) interval.low = std::exp(*interval.low);
  if (interval.high) interval.high = std::exp(*interval.high);
  return interval;
}

}  // namespace equitile
