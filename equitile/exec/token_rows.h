// Rows of tokens on their way between sources, parcels and strips, for lanes that are not in home
// order, and output rows on their way home.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "equitile/exec/itinerary.h"
#include "equitile/kernel/strips.h"

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

// The home side: rows of those tokens of a block that lie on `rank`.
struct HomeRowsArgs {
  const HomeMap* homes = nullptr;
  const Problem* problem = nullptr;
  const int32_t* order = nullptr;
  int32_t rank = 0;
};
// Visits (token, row) for the tokens of a block on the rank, positions ascending.
template <typename Visit>
void ForEachHomeRow(const HomeRowsArgs& args, const BlockRows& block, Visit&& visit) {
  const int64_t item = args.problem->lanes.BatchOf(block.lane);
  const Range positions = args.problem->grid.QBlockTokens(block.block);
  const Range own = args.homes->RankTokens(Side::kQuery, args.rank, item);
  int64_t row = block.row;
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    const int64_t token = args.order[p];
    if (own.Contains(token)) visit(token, row++);
  }
}

// The computing side: where each token of a gathered block lies.
struct GatherArgs {
  const Itinerary* itinerary = nullptr;
  const GatheredBlocks* gathered = nullptr;
  int64_t index = 0;  // of the block
  const int32_t* order = nullptr;
};
// Visits (position, token, home, row in that home's parcel; the row means nothing at home).
template <typename Visit>
void ForEachGatheredRow(const GatherArgs& args, std::vector<int64_t>& next_row, Visit&& visit) {
  const GatheredBlock& block = args.gathered->blocks[static_cast<size_t>(args.index)];
  const Problem& problem = args.itinerary->program.problem;
  const int64_t item = problem.lanes.BatchOf(block.lane);
  const Range positions = problem.grid.QBlockTokens(block.block);
  const auto first = args.gathered->first_row.begin() + args.index * args.itinerary->ranks;
  next_row.assign(first, first + args.itinerary->ranks);
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    const int64_t token = args.order[p];
    const int32_t home = args.itinerary->homes->RankOf(Side::kQuery, item, token);
    visit(p, token, home, next_row[static_cast<size_t>(home)]++);
  }
}

}  // namespace equitile
