#include "equitile/plan/core/home_map.h"

#include <algorithm>

namespace equitile {

HomeMap::HomeMap(const Problem& problem)
    : ranks_(problem.ranks),
      same_(problem.grid.q_tokens == problem.grid.kv_tokens),
      lanes_(problem.lanes),
      batch_(problem.lanes.batch),
      block_tokens_(problem.grid.block_tokens),
      tokens_{problem.grid.q_tokens, problem.grid.kv_tokens},
      item_tiles_{CeilDiv(problem.grid.q_tokens, kHomeTileTokens),
                  CeilDiv(problem.grid.kv_tokens, kHomeTileTokens)} {
  FillTables(Side::kQuery);
  if (!same_) FillTables(Side::kKey);
  if (problem.orders.empty()) return;
  std::map<std::pair<TokenOrder, int64_t>, int32_t> known;
  for (int64_t lane = 0; lane < lanes_.Count(); ++lane) {
    const TokenOrder order = problem.OrderOf(lane);
    if (order == problem.token_grid.home) {
      scattered_of_lane_.push_back(-1);
      continue;
    }
    const int64_t item = lanes_.BatchOf(lane);
    const auto [entry, is_new] =
        known.try_emplace({order, item}, static_cast<int32_t>(scattered_.size()));
    if (is_new) scattered_.push_back(Scatter(problem, order, item));
    scattered_of_lane_.push_back(entry->second);
  }
}

Range HomeMap::RankTiles(Side side, int32_t rank) const {
  return EvenPart(LineTiles(side), rank, ranks_);
}

void HomeMap::FillTables(Side side) {
  const int64_t item_tiles = item_tiles_[Index(side)];
  auto& rank_of_tile = rank_of_tile_[Index(side)];
  rank_of_tile.resize(static_cast<size_t>(LineTiles(side)));
  auto& rank_tokens = rank_tokens_[Index(side)];
  rank_tokens.resize(static_cast<size_t>(batch_ * ranks_));
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    const Range tiles = RankTiles(side, rank);
    std::fill(rank_of_tile.begin() + tiles.begin, rank_of_tile.begin() + tiles.end, rank);
    for (int64_t item = 0; item < batch_; ++item) {
      const auto token = [&](int64_t tile) {
        return std::min(
            std::clamp<int64_t>(tile - item * item_tiles, 0, item_tiles) * kHomeTileTokens,
            Tokens(side));
      };
      rank_tokens[static_cast<size_t>(item * ranks_ + rank)] = {token(tiles.begin),
                                                                token(tiles.end)};
    }
  }
}

int64_t HomeMap::LocalTokens(Side side, int64_t lane, Range blocks, int32_t rank) const {
  if (!scattered_of_lane_.empty() && ScatteredOf(lane) != nullptr) {
    int64_t local = 0;
    ForEachPart(side, lane, blocks,
                [&](int32_t home, int64_t tokens) { local += home == rank ? tokens : 0; });
    return local;
  }
  const Range own = RankTokens(side, rank, lanes_.BatchOf(lane)), tokens = TokensOf(side, blocks);
  return std::max<int64_t>(0, std::min(own.end, tokens.end) - std::max(own.begin, tokens.begin));
}

HomeMap::Scattered HomeMap::Scatter(const Problem& problem, TokenOrder order,
                                    int64_t batch_item) const {
  const std::vector<int32_t> token_at = TokenAtPosition(problem.token_grid, order);
  const int64_t blocks = problem.grid.QBlocks();
  std::vector<int32_t> home_of_tile(static_cast<size_t>(item_tiles_[0]));
  for (int64_t tile = 0; tile < item_tiles_[0]; ++tile) {
    home_of_tile[static_cast<size_t>(tile)] =
        RankOf(Side::kQuery, batch_item, tile * kHomeTileTokens);
  }
  Scattered scattered;
  scattered.first.push_back(0);
  std::vector<int32_t> count(static_cast<size_t>(ranks_), 0), homes;
  for (int64_t block = 0; block < blocks; ++block) {
    homes.clear();
    const Range positions = problem.grid.QBlockTokens(block);
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      const int32_t home =
          home_of_tile[static_cast<size_t>(token_at[static_cast<size_t>(p)] / kHomeTileTokens)];
      if (count[static_cast<size_t>(home)]++ == 0) homes.push_back(home);
    }
    std::sort(homes.begin(), homes.end());
    for (int32_t home : homes) {
      scattered.parts.push_back({home, std::exchange(count[static_cast<size_t>(home)], 0)});
    }
    scattered.first.push_back(std::ssize(scattered.parts));
  }
  return scattered;
}

}  // namespace equitile
