#include "equitile/base/duration.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace equitile {
namespace {

constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;

// "3 d 8 h", of seconds that are a whole number of `small` ones; the second part is left out where
// it is nothing.
std::string TwoParts(int64_t seconds, int64_t large, const char* large_name, int64_t small,
                     const char* small_name) {
  const int64_t rest = seconds % large / small;
  const std::string first = fmt::format("{} {}", seconds / large, large_name);
  return rest == 0 ? first : fmt::format("{} {} {}", first, rest, small_name);
}

int64_t Rounded(double seconds, int64_t unit) {
  return std::llround(seconds / static_cast<double>(unit)) * unit;
}

}  // namespace

std::string DurationText(double seconds) {
  if (!(std::abs(seconds) < 1e15)) return fmt::format("{} s", seconds);
  if (seconds < 0.995) return fmt::format("{:.2g} s", seconds);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (seconds <= 120) return fmt::format("{:.0f} s", seconds);
  if (const int64_t whole = Rounded(seconds, 1); whole < kHour) {
    return TwoParts(whole, kMinute, "min", 1, "s");
  }
  if (const int64_t whole = Rounded(seconds, kMinute); whole < kDay) {
    return TwoParts(whole, kHour, "h", kMinute, "min");
  }
  return TwoParts(Rounded(seconds, kHour), kDay, "d", kHour, "h");
}

}  // namespace equitile
