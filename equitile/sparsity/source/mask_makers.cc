#include "equitile/sparsity/source/mask_makers.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace equitile {

std::vector<int64_t> JudgedLanes(const Lanes& all, bool share_passes,
                                 std::span<const int64_t> skipped) {
  std::vector<int64_t> lanes;
  for (int64_t lane = 0; lane < (share_passes ? all.heads : all.Count()); ++lane)
    if (!std::ranges::binary_search(skipped, all.HeadOf(lane))) lanes.push_back(lane);
  return lanes;
}

std::vector<LaneMaker> MakersOf(const HomeMap& homes, const Lanes& all,
                                std::span<const int64_t> lanes) {
  const int64_t most = CeilDiv(std::ssize(lanes), int64_t{homes.ranks()});
  std::vector<int64_t> made(static_cast<size_t>(homes.ranks()), 0);  // by rank
  std::vector<LaneMaker> makers;
  for (const int64_t lane : lanes) {
    const auto merit = [&](int32_t rank) {
      const int64_t own = made[static_cast<size_t>(rank)];
      return std::tuple(own < most, homes.RankTokens(Side::kQuery, rank, all.BatchOf(lane)).size(),
                        -own);
    };
    int32_t best = 0;
    for (int32_t rank = 1; rank < homes.ranks(); ++rank)
      if (merit(rank) > merit(best)) best = rank;
    ++made[static_cast<size_t>(best)];
    makers.push_back({lane, best});
  }
  return makers;
}

std::vector<std::vector<LaneMaker>> InTurns(std::span<const LaneMaker> makers, int64_t at_once) {
  std::map<int32_t, int64_t> made;
  std::vector<std::vector<LaneMaker>> turns;
  for (const LaneMaker& one : makers) {
    const auto turn = static_cast<size_t>(made[one.maker]++ / at_once);
    if (turn == turns.size()) turns.emplace_back();
    turns[turn].push_back(one);
  }
  return turns;
}

}  // namespace equitile
