#include "equitile/search/choice/step_ranges.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {

std::vector<Range> SplitSteps(int64_t steps,
                              const std::function<double(std::span<const Range>)>& cost) {
  std::vector<Range> ranges = {{0, steps}};
  double best_cost = cost(ranges);
  while (ranges.size() < kMostRanges) {
    std::vector<Range> best = ranges;
    double least = best_cost;
    for (int64_t at = 1; at < steps; ++at) {
      std::vector<Range> split;
      for (const Range& range : ranges) {
        if (range.begin < at && at < range.end) {
          split.push_back({range.begin, at});
          split.push_back({at, range.end});
        } else {
          split.push_back(range);
        }
      }
      if (split.size() == ranges.size()) continue;
      const double split_cost = cost(split);
      if (split_cost < least) {
        least = split_cost;
        best = split;
      }
    }
    if (!(least < best_cost * (1 - kSplitGain))) break;
    ranges = best;
    best_cost = least;
  }
  return ranges;
}

std::vector<Range> EachStep(int64_t steps) {
  std::vector<Range> ranges;
  for (int64_t step = 0; step < steps; ++step) ranges.push_back({step, step + 1});
  return ranges;
}

std::vector<SigmaRange> SigmaRanges(std::span<const Range> ranges, std::span<const float> sigmas) {
  EQ_CHECK(!ranges.empty() && ranges.back().end <= std::ssize(sigmas));
  std::vector<SigmaRange> result;
  double high = 1;
  for (size_t i = 0; i < ranges.size(); ++i) {
    double low = 0;
    if (i + 1 < ranges.size()) {
      const auto next = static_cast<size_t>(ranges[i + 1].begin);
      low = (static_cast<double>(sigmas[next - 1]) + static_cast<double>(sigmas[next])) / 2;
    }
    result.push_back({low, high});
    high = low;
  }
  return result;
}

}  // namespace equitile
