// Which rank holds which tokens between attention layers, and so who sends what: a block of a lane
// in another order than the home's has parts on several homes.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/plan/core/plan.h"

namespace equitile {

enum class Side : uint8_t { kQuery, kKey };

// The cut where a problem gives none. Every batch item is cut on its own into tiles of this many
// tokens (the last one ragged), whatever the mask's block size; all tiles of all items form one
// line, and rank r of R holds tiles [floor(rT/R), floor((r+1)T/R)) of it. Query and key tokens have
// a line each; they coincide in self-attention.
inline constexpr int64_t kHomeTileTokens = 64;
Range DefaultHomeTiles(const Problem& problem, Side side, int32_t rank);  // on the line
// As Problem::homes.
std::vector<int64_t> DefaultHomes(const Problem& problem, Side side);

class HomeMap {
 public:
  explicit HomeMap(const Problem& problem);

  int32_t ranks() const { return ranks_; }
  int64_t Tokens(Side side) const { return tokens_[Index(side)]; }  // of one batch item
  // Natural token order.
  Range RankTokens(Side side, int32_t rank, int64_t batch_item) const {
    return rank_tokens_[Index(side)][static_cast<size_t>(batch_item * ranks_ + rank)];
  }
  int32_t RankOf(Side side, int64_t batch_item, int64_t token) const {
    int32_t rank = rank_of_tile_[Index(side)][static_cast<size_t>(
        batch_item * item_tiles_[Index(side)] + token / kHomeTileTokens)];
    while (token >= RankTokens(side, rank, batch_item).end) ++rank;
    return rank;
  }

  // Visits (home rank, tokens > 0) for the parts of kv or q blocks [blocks) of a lane. In home
  // order each home once, ascending; in another order each home once per block.
  template <typename Visit>
  void ForEachPart(Side side, int64_t lane, Range blocks, Visit&& visit) const {
    const Range tokens = TokensOf(side, blocks);
    if (tokens.empty()) return;
    const int64_t item = lanes_.BatchOf(lane);
    const Scattered* scattered = scattered_of_lane_.empty() ? nullptr : ScatteredOf(lane);
    if (scattered != nullptr) {
      for (int64_t p = scattered->first[static_cast<size_t>(blocks.begin)];
           p < scattered->first[static_cast<size_t>(blocks.end)]; ++p) {
        const Part& part = scattered->parts[static_cast<size_t>(p)];
        visit(part.home, static_cast<int64_t>(part.tokens));
      }
      return;
    }
    const int32_t last = RankOf(side, item, tokens.end - 1);
    for (int32_t rank = RankOf(side, item, tokens.begin); rank <= last; ++rank) {
      const Range own = RankTokens(side, rank, item);
      const int64_t begin = own.begin < tokens.begin ? tokens.begin : own.begin;
      const int64_t end = own.end < tokens.end ? own.end : tokens.end;
      if (begin < end) visit(rank, end - begin);
    }
  }

  // Positions of blocks [blocks) in a lane's order.
  Range TokensOf(Side side, Range blocks) const {
    const int64_t tokens = Tokens(side), begin = blocks.begin * block_tokens_,
                  end = blocks.end * block_tokens_;
    return {begin < tokens ? begin : tokens, end < tokens ? end : tokens};
  }
  // Tokens of blocks [blocks) of a lane that lie on `rank`.
  int64_t LocalTokens(Side side, int64_t lane, Range blocks, int32_t rank) const;
  int64_t BlockTokens(Side side, Range blocks) const { return TokensOf(side, blocks).size(); }

 private:
  struct Part {
    int32_t home, tokens;
  };
  // Blocks of one (order, batch item): parts of block b are parts[first[b] .. first[b+1]), homes
  // ascending.
  struct Scattered {
    std::vector<int64_t> first;
    std::vector<Part> parts;
  };

  // Which tables: those of the query side stand for both where the sides are equal.
  size_t Index(Side side) const { return same_ ? 0 : static_cast<size_t>(side); }
  void FillTables(Side side, const std::vector<int64_t>& homes);
  const Scattered* ScatteredOf(int64_t lane) const {
    const int32_t index = scattered_of_lane_[static_cast<size_t>(lane)];
    return index < 0 ? nullptr : &scattered_[static_cast<size_t>(index)];
  }
  Scattered Scatter(const Problem& problem, TokenOrder order, int64_t batch_item) const;

  int32_t ranks_ = 1;
  bool same_ = true;  // as many query as key tokens
  Lanes lanes_;
  int64_t batch_ = 1, block_tokens_ = 64;
  int64_t tokens_[2] = {0, 0}, item_tiles_[2] = {0, 0};
  std::vector<Range> rank_tokens_[2];     // [batch][ranks]
  std::vector<int32_t> rank_of_tile_[2];  // [batch][tiles] home of the tile's first token
  std::vector<int32_t>
      scattered_of_lane_;             // [lanes] index or -1 (home order); empty: all in home order
  std::vector<Scattered> scattered_;  // q and kv tokens are the same there
};

}  // namespace equitile
