// Rows of tokens on their way between sources, parcels and strips, where the tokens of a strip lie
// on several homes, and output rows on their way back.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "equitile/exec/itinerary.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {

// Rows [count][head_dim] of consecutive tokens of a lane, from a view or a producer.
void ReadRows(const TokenSource& source, Lanes lanes, int64_t lane, int64_t first, int64_t count,
              int64_t head_dim, float* rows);

// Token orders of a problem: position -> token, by lane; null for home order.
class LaneOrders {
 public:
  explicit LaneOrders(const Problem& problem);
  const int32_t* Of(int64_t lane) const {
    return by_lane_.empty() ? nullptr : by_lane_[static_cast<size_t>(lane)];
  }
  std::span<const int32_t* const> ByLane() const { return by_lane_; }

 private:
  std::map<TokenOrder, std::vector<int32_t>> maps_;
  std::vector<const int32_t*> by_lane_;
};

// Visits (token, row) for the tokens of scattered positions that are at home, positions ascending.
template <typename Visit>
void ForEachHomeRow(const TokenRows& scattered, const int32_t* order, Range home, Visit&& visit) {
  int64_t row = scattered.row;
  for (int64_t p = scattered.first; p < scattered.first + scattered.count; ++p) {
    const int64_t token = order != nullptr ? order[p] : p;
    if (home.Contains(token)) visit(token, row++);
  }
}

// Visits (position, token, home, row in that home's parcel) for the tokens of a gathered run; the
// row means nothing at home.
template <typename Visit>
void ForEachGatheredRow(const Itinerary& itinerary, const GatheredStrips& gathered, int64_t index,
                        const int32_t* order, Visit&& visit) {
  const StripRun& run = gathered.runs[static_cast<size_t>(index)];
  const Range positions = PositionsOf(run, itinerary.homes->Tokens(Side::kQuery));
  const int64_t item = itinerary.program.problem.lanes.BatchOf(run.lane);
  const auto first = gathered.first_row.begin() + index * itinerary.ranks;
  std::vector<int64_t> next_row(first, first + itinerary.ranks);
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    const int64_t token = order != nullptr ? order[p] : p;
    const int32_t home = itinerary.homes->RankOf(Side::kQuery, item, token);
    visit(p, token, home, next_row[static_cast<size_t>(home)]++);
  }
}

}  // namespace equitile
