#include "equitile/plan/core/home_map.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

int64_t TokensOf(const Problem& problem, Side side) {
  return side == Side::kQuery ? problem.grid.q_tokens : problem.grid.kv_tokens;
}

}  // namespace

Range DefaultHomeTiles(const Problem& problem, Side side, int32_t rank) {
  const int64_t item_tiles = CeilDiv(TokensOf(problem, side), kHomeTileTokens);
  return EvenPart(problem.lanes.batch * item_tiles, rank, problem.ranks);
}

std::vector<int64_t> DefaultHomes(const Problem& problem, Side side) {
  const int64_t tokens = TokensOf(problem, side), item_tiles = CeilDiv(tokens, kHomeTileTokens);
  std::vector<int64_t> homes;
  homes.reserve(static_cast<size_t>(problem.lanes.batch * problem.ranks));
  for (int64_t item = 0; item < problem.lanes.batch; ++item) {
    for (int32_t rank = 0; rank < problem.ranks; ++rank) {
      const int64_t tile = DefaultHomeTiles(problem, side, rank).begin - item * item_tiles;
      homes.push_back(std::min(std::clamp<int64_t>(tile, 0, item_tiles) * kHomeTileTokens, tokens));
    }
  }
  return homes;
}

HomeMap::HomeMap(const Problem& problem)
    : ranks_(problem.ranks),
      same_(problem.grid.q_tokens == problem.grid.kv_tokens),
      lanes_(problem.lanes),
      batch_(problem.lanes.batch),
      block_tokens_(problem.grid.block_tokens),
      tokens_{problem.grid.q_tokens, problem.grid.kv_tokens},
      item_tiles_{CeilDiv(problem.grid.q_tokens, kHomeTileTokens),
                  CeilDiv(problem.grid.kv_tokens, kHomeTileTokens)} {
  for (const Side side : {Side::kQuery, Side::kKey}) {
    if (side == Side::kKey && same_) break;
    FillTables(side, problem.homes.empty() ? DefaultHomes(problem, side) : problem.homes);
  }
  if (problem.orders.empty()) return;
  std::map<std::pair<TokenOrder, int64_t>, int32_t> known;
  for (int64_t lane = 0; lane < lanes_.Count(); ++lane) {
    const TokenOrder order = problem.OrderOf(lane);
    if (problem.InHomeOrder(lane)) {
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

void HomeMap::FillTables(Side side, const std::vector<int64_t>& homes) {
  EQ_CHECK(std::ssize(homes) == batch_ * ranks_, "{} homes of {} items on {} ranks", homes.size(),
           batch_, ranks_);
  for (int64_t item = 0; item < batch_; ++item) {
    const int64_t* first = homes.data() + item * ranks_;
    int32_t home = 0;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      rank_tokens_[Index(side)].push_back(
          {first[rank], rank + 1 < ranks_ ? first[rank + 1] : Tokens(side)});
    }
    for (int64_t token = 0; token < Tokens(side); token += kHomeTileTokens) {
      while (token >= RankTokens(side, home, item).end) ++home;
      rank_of_tile_[Index(side)].push_back(home);
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
  Scattered scattered;
  scattered.first.push_back(0);
  std::vector<int32_t> count(static_cast<size_t>(ranks_), 0), homes;
  for (int64_t block = 0; block < blocks; ++block) {
    homes.clear();
    const Range positions = problem.grid.QBlockTokens(block);
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      const int32_t home = RankOf(Side::kQuery, batch_item, token_at[static_cast<size_t>(p)]);
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
