// Which rank makes a lane's mask: one that has much of the lane at home, so that little travels,
// and none makes more than its part of the lanes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_grid.h"
#include "equitile/plan/core/home_map.h"

namespace equitile {

// Lanes that are judged at all: without those of skipped heads (ascending), and the first pass's
// alone where passes share its masks. Ascending.
std::vector<int64_t> JudgedLanes(const Lanes& all, bool share_passes,
                                 std::span<const int64_t> skipped);

struct LaneMaker {
  int64_t lane = 0;
  int32_t maker = 0;
};

// Of each of these lanes, in their order: among the ranks that make fewer than ceil(lanes / ranks)
// so far the one with most of the lane's tokens; of equal ones that which makes fewest, then the
// first. The same on every rank.
std::vector<LaneMaker> MakersOf(const HomeMap& homes, const Lanes& all,
                                std::span<const int64_t> lanes);

// The same lanes in turns, in each of them at most `at_once` of any maker, the first of its lanes
// that are left.
std::vector<std::vector<LaneMaker>> InTurns(std::span<const LaneMaker> makers, int64_t at_once);

}  // namespace equitile
