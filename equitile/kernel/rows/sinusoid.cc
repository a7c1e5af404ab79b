#include "equitile/kernel/rows/sinusoid.h"

#include <cmath>

namespace equitile {

void TimestepSinusoid(float t, std::span<float> u) {
  const size_t n = u.size() / 2;
  const auto minus_log = static_cast<float>(-std::log(10000.0));
  for (size_t i = 0; i < n; ++i) {
    const float exponent = minus_log * static_cast<float>(i) / static_cast<float>(n);
    // Through double, so that the result is the nearest f32 whatever the library's expf does.
    const auto frequency = static_cast<float>(std::exp(static_cast<double>(exponent)));
    const float angle = t * frequency;
    u[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    u[n + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

}  // namespace equitile
