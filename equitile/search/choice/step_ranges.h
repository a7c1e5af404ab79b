// Where a pattern changes over the steps: ranges of steps, found by trying where a split pays, and
// the noise levels between them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "equitile/base/range.h"

namespace equitile {

// The least part of the cost that another range must save: fewer ranges are easier to trust.
inline constexpr double kSplitGain = 0.03;
inline constexpr size_t kMostRanges = 4;

// Splits [0, steps), one range at a time where it lowers the cost most, as long as that is worth
// it. cost: of a way to split, the lower the better.
std::vector<Range> SplitSteps(int64_t steps,
                              const std::function<double(std::span<const Range>)>& cost);

std::vector<Range> EachStep(int64_t steps);

// Noise levels [low, high) of ranges of steps, half-way between the last step of one and the first
// of the next; the first reaches up to 1 and the last down to 0. sigmas: of the steps of the
// ranges.
struct SigmaRange {
  double low = 0, high = 1;
};
std::vector<SigmaRange> SigmaRanges(std::span<const Range> ranges, std::span<const float> sigmas);

}  // namespace equitile
