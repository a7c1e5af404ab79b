// Works that are timed in turns, so that whatever else the machine does meets all of them alike.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"

namespace equitile {

struct TurnTimes {
  std::vector<double> seconds;  // of every run
  // What ratios are made from. On one thread in processor time, in which other work on the machine
  // does not count; on several, which wait, in seconds.
  double least = std::numeric_limits<double>::infinity();
};

// Runs work(0), work(1), ... after each other, as many as `times`, again and again until `seconds`
// have gone, at least once; adds to `times`. threads: that each work takes, the caller among them.
void TimeInTurns(int threads, double seconds, FunctionRef<void(size_t work)> run,
                 std::span<TurnTimes> times);

}  // namespace equitile
