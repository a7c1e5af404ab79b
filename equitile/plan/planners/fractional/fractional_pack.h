// Whole lanes onto ranks, as evenly as lanes allow: the first step of the fractional planner.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/range.h"

namespace equitile {

struct PackProblem {
  std::vector<int64_t> cost;    // [lanes]
  std::vector<Range> eligible;  // [lanes] ranks that may own it, not empty
  std::vector<double> room;     // [ranks] work that is still wanted; may be negative
  int64_t most_lanes = 0;       // per rank, as far as the eligible ranks allow
  double close_enough = 1;      // pairs of ranks whose excesses differ by less are left alone
  uint64_t variant = 0;         // 0: heaviest first; others perturb that order, for a second try
};

// [lanes] rank. Greedy by decreasing cost, then exchanges of up to two lanes for up to two that
// bring a pair of ranks nearer to its room.
std::vector<int32_t> PackLanes(const PackProblem& problem);

}  // namespace equitile
