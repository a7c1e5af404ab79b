// In which order a rank asks for its lanes, and in how many helpings: the exchange of one group of
// heads is hidden behind the computing of the one before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace equitile {

// A rank's part of a lane.
struct LaneShare {
  int32_t lane = 0, rank = 0;
  double input_seconds = 0;    // Q, K, V from other ranks, at the link's full rate
  double compute_seconds = 0;  // at the rank's own speed
  double output_seconds = 0;   // O with log-sum-exp, back to other ranks
};

// [shares] group of each, from 0. Groups divide each rank's computing evenly, in one of a few
// orders: what arrives soon and keeps the rank busy first, perhaps what leaves soon last. Order and
// number of groups, at most kMostGroups, are those with the shortest predicted pipeline; each group
// costs a latency, so there is one where latency rules.
inline constexpr int32_t kMostGroups = 16;
std::vector<int32_t> GroupShares(std::span<const LaneShare> shares, int32_t ranks,
                                 double latency_seconds);

}  // namespace equitile
