// A mean and how far it can be trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace equitile {

struct MeanInterval {
  double mean = 0.0;
  std::optional<double> low, high;  // 95 %; nothing for one value
};

// Student's interval for the mean of at least one value.
MeanInterval MeanWithInterval(std::span<const double> values);

// The same for ratios: of their logarithms, so that a over b and b over a agree. All above 0.
MeanInterval RatioWithInterval(std::span<const double> ratios);

// The t that |T| stays below with probability 0.95.
double StudentT95(int64_t degrees);

}  // namespace equitile
