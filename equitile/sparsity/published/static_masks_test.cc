#include "equitile/sparsity/published/static_masks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Token {
  bool is_text = true;
  int64_t frame = 0, height = 0, width = 0, place = 0;
};

// By position in the order.
std::vector<Token> TokensOf(TokenGrid grid, TokenOrder order) {
  grid.home = TokenOrder::kFHW;
  std::vector<Token> tokens;
  for (int32_t t : TokenAtPosition(grid, order)) {
    const int64_t cell = t - grid.text_before, places = grid.height * grid.width;
    if (cell < 0 || cell >= grid.VideoTokens()) {
      tokens.push_back({});
    } else {
      tokens.push_back({false, cell / places, cell / grid.width % grid.height, cell % grid.width,
                        cell % places});
    }
  }
  return tokens;
}

// Kept blocks by a rule that sees all pairs of tokens of a block: keeps(queries, keys).
template <typename Keeps>
BlockMask SlowMask(const TokenGrid& grid, int64_t block, const std::vector<Token>& tokens,
                   Keeps&& keeps) {
  BlockMask mask({1, 1}, {grid.Tokens(), grid.Tokens(), block});
  const auto part = [&](Range range) {
    return std::span(tokens).subspan(static_cast<size_t>(range.begin),
                                     static_cast<size_t>(range.size()));
  };
  for (int64_t q = 0; q < mask.QBlocks(); ++q) {
    for (int64_t kv = 0; kv < mask.KvBlocks(); ++kv) {
      const auto queries = part(mask.grid().QBlockTokens(q)),
                 keys = part(mask.grid().KvBlockTokens(kv));
      const auto is_text = [](const Token& token) { return token.is_text; };
      if (q == kv || std::ranges::any_of(queries, is_text) || std::ranges::any_of(keys, is_text) ||
          keeps(queries, keys))
        mask.Set(0, q, kv);
    }
  }
  return mask;
}

void ExpectAllLanes(const LaneMasks& masks, const BlockMask& one, const std::string& what) {
  for (int64_t lane = 0; lane < masks.blocks().LaneCount(); ++lane) {
    for (int64_t q = 0; q < one.QBlocks(); ++q)
      ASSERT_EQ(masks.blocks().KeptInRow(lane, q), one.KeptInRow(0, q))
          << what << ", lane " << lane << ", row " << q;
  }
}

const std::vector<TokenGrid> kGrids = {{1, 1, 1},        {9, 8, 8},         {7, 5, 9},
                                       {13, 3, 4, 5, 0}, {6, 7, 7, 20, 33}, {33, 2, 3}};

using Tokens = std::span<const Token>;

// The published rule, pair by pair.
bool RadialPair(const Token& q, const Token& k, int64_t places, int64_t block, double decay) {
  const int64_t distance = std::abs(q.frame - k.frame);
  if (k.frame == 0 || distance <= 1) return true;
  const double reach = std::pow(2.0, std::bit_width(static_cast<uint64_t>(places))) /
                       std::pow(2.0, std::bit_width(static_cast<uint64_t>(distance)));
  const double away = static_cast<double>(std::abs(q.place - k.place));
  if (reach < static_cast<double>(block)) {
    const auto split = static_cast<int64_t>(static_cast<double>(block) / reach);
    if (distance % split != 0) return false;
  }
  return away <= std::max(reach * decay, static_cast<double>(block));
}

TEST(RadialMasks, AreTheirDefinition) {
  for (const TokenGrid& grid : kGrids) {
    for (int64_t block : {16, 32}) {
      for (double decay : {1.0, 0.4}) {
        const auto keeps = [&](Tokens queries, Tokens keys) {
          int64_t seen = 0, well_seen = 0;
          for (const Token& k : keys) {
            const auto count = std::ranges::count_if(queries, [&](const Token& q) {
              return RadialPair(q, k, grid.height * grid.width, block, decay);
            });
            seen += count > 0;
            well_seen += static_cast<double>(count) / static_cast<double>(queries.size()) > 1.0 / 3;
          }
          return seen > 0 && static_cast<double>(well_seen) / static_cast<double>(seen) > 0.6;
        };
        const BlockMask slow = SlowMask(grid, block, TokensOf(grid, TokenOrder::kFHW), keeps);
        const LaneMasks masks = RadialMasks({{2, 2}, grid, block}, {.decay = decay});
        ExpectAllLanes(masks, slow,
                       fmt::format("{}x{}x{}, block {}, decay {}", grid.frames, grid.height,
                                   grid.width, block, decay));
      }
    }
  }
}

// Frames of four whole blocks: near frames and the first whole, then bands that halve.
TEST(RadialMasks, BandsHalveAsTheDistanceDoubles) {
  const TokenGrid grid = {17, 16, 16};
  const BlockMask mask = RadialMasks({{1, 1}, grid, 64}).blocks();
  const auto kept = [&](int64_t from, int64_t to) {  // blocks of one pair of frames
    int64_t count = 0;
    for (int64_t q = 0; q < 4; ++q)
      for (int64_t kv = 0; kv < 4; ++kv) count += mask.Get(0, from * 4 + q, to * 4 + kv);
    return count;
  };
  EXPECT_EQ(kept(8, 8), 16);
  EXPECT_EQ(kept(8, 9), 16);
  EXPECT_EQ(kept(16, 0), 16);   // the sink
  EXPECT_EQ(kept(16, 14), 14);  // 128 places to either side: all but the corners
  EXPECT_EQ(kept(16, 12), 10);  // 64 places: the diagonal and its neighbours
  EXPECT_EQ(kept(16, 11), 10);
  EXPECT_EQ(kept(16, 8), 10);  // 32 places are half a block: only every second frame
  EXPECT_EQ(kept(16, 7), 0);
  EXPECT_EQ(kept(1, 16), 0);
}

TEST(SlidingTileMasks, AreTheirDefinition) {
  const std::vector<SlidingTileOptions> options = {{},
                                                   {.tile = {2, 3, 3}, .window = {3, 1, 3}},
                                                   {.tile = {1, 4, 4}, .window = {5, 2, 1}},
                                                   {.tile = {1, 1, 1}, .window = {1, 1, 1}}};
  for (const TokenGrid& grid : kGrids) {
    for (const SlidingTileOptions& option : options) {
      for (int64_t block : {16, 48}) {
        const TokenOrder order = TokenOrder::Tiles(option.tile[0], option.tile[1], option.tile[2]);
        const auto tile_of = [&](const Token& t) {
          return std::array<int64_t, 3>{t.frame / option.tile[0], t.height / option.tile[1],
                                        t.width / option.tile[2]};
        };
        const std::array<int64_t, 3> last =
            tile_of({false, grid.frames - 1, grid.height - 1, grid.width - 1, 0});
        const auto sees = [&](const Token& q, const Token& k) {
          for (size_t axis = 0; axis < 3; ++axis) {
            const int64_t half = option.window[axis] / 2;
            int64_t center = std::min(tile_of(q)[axis], last[axis] - half);
            center = std::max(center, half);
            if (std::abs(tile_of(k)[axis] - center) > half) return false;
          }
          return true;
        };
        const auto keeps = [&](Tokens queries, Tokens keys) {
          for (const Token& q : queries)
            for (const Token& k : keys)
              if (sees(q, k)) return true;
          return false;
        };
        const BlockMask slow = SlowMask(grid, block, TokensOf(grid, order), keeps);
        const LaneMasks masks = SlidingTileMasks({{1, 3}, grid, block}, option);
        ExpectAllLanes(masks, slow,
                       fmt::format("{}x{}x{}, block {}, {}", grid.frames, grid.height, grid.width,
                                   block, TokenOrderName(order)));
        EXPECT_EQ(masks.orders(), std::vector<TokenOrder>(3, order));
      }
    }
  }
}

// Tiles of one block: a query sees 27 tiles of the 5 x 6 x 10, wherever it is.
TEST(SlidingTileMasks, WindowsAreWholeAtTheBorders) {
  const TokenGrid grid = {20, 24, 40};
  const BlockMask mask =
      SlidingTileMasks({{1, 1}, grid, 64}, {.tile = {4, 4, 4}, .window = {3, 3, 3}}).blocks();
  for (int64_t q = 0; q < mask.QBlocks(); ++q) ASSERT_EQ(mask.RowCount(0, q), 27) << q;
  EXPECT_EQ(mask.QBlocks(), 5 * 6 * 10);
}

// Windows are found by counting pairs of tokens along each axis; blocks that straddle tiles keep
// more.
TEST(SlidingTileMasks, WindowsOfADensity) {
  // Tiles and blocks of one size: the mask has the density that was counted, and no other window
  // comes nearer.
  const TokenGrid grid = {18, 48, 80};
  EXPECT_EQ(SlidingTilesOfDensity(grid, 1).window, (std::array<int64_t, 3>{3, 7, 11}));
  EXPECT_EQ(SlidingTilesOfDensity(grid, 1e-9).window, (std::array<int64_t, 3>{1, 1, 1}));
  const auto density_of = [&](const SlidingTileOptions& options) {
    return SlidingTileMasks({{1, 1}, grid, 128}, options).blocks().Density();
  };
  for (double density : {0.1, 0.3, 0.6}) {
    const double found = density_of(SlidingTilesOfDensity(grid, density));
    EXPECT_NEAR(found, density, 0.05);
    for (const std::array<int64_t, 3>& window : std::vector<std::array<int64_t, 3>>{
             {3, 3, 3}, {1, 5, 5}, {3, 5, 7}, {1, 7, 11}, {3, 1, 11}, {3, 7, 5}}) {
      EXPECT_LE(std::abs(found - density),
                std::abs(density_of({.window = window}) - density) + 1e-12);
    }
  }
  EXPECT_LT(density_of(SlidingTilesOfDensity(grid, 0.01)), 0.01);
  // wan-mini's grid has 3 x 2 x 2 tiles, the last of one frame.
  const SlidingTileOptions mini = SlidingTilesOfDensity({13, 16, 16}, 0.3);
  EXPECT_NEAR(SlidingTileMasks({{1, 1}, {13, 16, 16}, 64}, mini).blocks().Density(), 0.3, 0.1);
  EXPECT_THROW(SlidingTilesOfDensity(grid, 0), InputError);
}

TEST(WindowMasks, AreBandsOfTheDensity) {
  const TokenGrid grid = {13, 16, 16};
  const LaneMasks spatial = WindowMasks({{2, 3}, grid, 64}, HeadMode::kDiagonal);
  const LaneMasks temporal = WindowMasks({{2, 3}, grid, 64}, HeadMode::kMultiDiagonal);
  EXPECT_NEAR(spatial.blocks().Density(), 0.3, 0.02);
  EXPECT_NEAR(temporal.blocks().Density(), 0.3, 0.02);
  EXPECT_TRUE(spatial.orders().empty());
  EXPECT_EQ(temporal.orders(), std::vector<TokenOrder>(6, TokenOrder::kHWF));
}

TEST(StaticMasks, RefuseWhatIsNoOption) {
  const StaticMaskPlace place = {{1, 1}, {3, 4, 5}, 16};
  EXPECT_THROW(RadialMasks(place, {.decay = 0}), InputError);
  EXPECT_THROW(RadialMasks(place, {.decay = NAN}), InputError);
  EXPECT_THROW(SlidingTileMasks(place, {.tile = {0, 1, 1}}), InputError);
  EXPECT_THROW(SlidingTileMasks(place, {.window = {3, 0, 3}}), InputError);
  EXPECT_THROW(WindowMasks(place, HeadMode::kDiagonal, 0), InputError);
  EXPECT_THROW(WindowMasks(place, HeadMode::kDiagonal, 1.5), InputError);
  EXPECT_THROW(RadialMasks({{1, 1}, {3, 4, 5}, 17}), InputError);
}

}  // namespace
}  // namespace equitile
