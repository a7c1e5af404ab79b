#include "equitile/pattern/token_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "equitile/pattern/hilbert.h"

namespace equitile {
namespace {

const std::vector<TokenGrid> kGrids = {
    {1, 1, 1, 0, 0}, {2, 3, 5, 0, 0}, {2, 3, 5, 7, 0},   {3, 2, 2, 0, 4},
    {5, 1, 3, 1, 1}, {1, 7, 1, 3, 2}, {13, 11, 3, 2, 9}, {0, 4, 4, 5, 3},
};

std::vector<TokenOrder> AllKinds() {
  std::vector<TokenOrder> orders(kAxisOrders.begin(), kAxisOrders.end());
  orders.insert(orders.end(), {TokenOrder::kHilbert, TokenOrder::Tiles(1, 1, 1),
                               TokenOrder::Tiles(2, 2, 2), TokenOrder::Tiles(3, 2, 1),
                               TokenOrder::Tiles(1, 65535, 2), TokenOrder::Tiles(99, 98, 97)});
  return orders;
}

TEST(TokenGrid, Counts) {
  const TokenGrid grid = {2, 3, 5, 7, 11};
  EXPECT_EQ(grid.VideoTokens(), 30);
  EXPECT_EQ(grid.Tokens(), 48);
}

TEST(TokenGrid, EveryOrderIsAPermutationThatLeavesTheTextAlone) {
  for (const TokenGrid& grid : kGrids) {
    for (TokenOrder order : AllKinds()) {
      const std::vector<int32_t> tokens = TokenAtPosition(grid, order);
      std::vector<int32_t> natural(static_cast<size_t>(grid.Tokens()));
      std::iota(natural.begin(), natural.end(), 0);
      EXPECT_TRUE(
          std::is_permutation(tokens.begin(), tokens.end(), natural.begin(), natural.end()));
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + grid.text_before, natural.begin()));
      EXPECT_TRUE(std::equal(tokens.end() - grid.text_after, tokens.end(),
                             natural.end() - grid.text_after));
    }
    const std::vector<int32_t> fhw = TokenAtPosition(grid, TokenOrder::kFHW);
    EXPECT_TRUE(std::ranges::is_sorted(fhw));
  }
}

// The token at (f, h, w) stands at the position that its three coordinates give in the order's own
// axes, slowest first.
TEST(TokenGrid, PositionsAreMixedRadixNumbersInTheOrdersAxes) {
  for (const TokenGrid& grid : kGrids) {
    for (TokenOrder order : kAxisOrders) {
      const std::vector<int32_t> tokens = TokenAtPosition(grid, order);
      const std::string_view axes = order.Axes();
      for (int64_t f = 0; f < grid.frames; ++f) {
        for (int64_t h = 0; h < grid.height; ++h) {
          for (int64_t w = 0; w < grid.width; ++w) {
            int64_t position = 0;
            for (char axis : axes) {
              if (axis == 'f') position = position * grid.frames + f;
              if (axis == 'h') position = position * grid.height + h;
              if (axis == 'w') position = position * grid.width + w;
            }
            const int64_t token = grid.text_before + (f * grid.height + h) * grid.width + w;
            ASSERT_EQ(tokens[static_cast<size_t>(grid.text_before + position)], token)
                << axes << " f" << f << " h" << h << " w" << w;
          }
        }
      }
    }
  }
}

TEST(TokenGrid, SpaceMajorPutsTheFramesOfOnePlaceTogether) {
  EXPECT_EQ(TokenAtPosition({3, 1, 2, 0, 0}, TokenOrder::kHWF),
            (std::vector<int32_t>{0, 2, 4, 1, 3, 5}));
}

// Sorting tokens by (tile, place in the tile), both slowest axis first.
TEST(TokenGrid, TilesAreSortedByTileThenInside) {
  for (const TokenGrid& grid : kGrids) {
    for (TokenOrder order : AllKinds()) {
      if (!order.IsTiles()) continue;
      const auto [frames, height, width] = order.TileExtents();
      std::vector<std::array<int64_t, 7>> keys;
      for (int64_t f = 0; f < grid.frames; ++f) {
        for (int64_t h = 0; h < grid.height; ++h) {
          for (int64_t w = 0; w < grid.width; ++w) {
            keys.push_back({f / frames, h / height, w / width, f % frames, h % height, w % width,
                            grid.text_before + (f * grid.height + h) * grid.width + w});
          }
        }
      }
      std::ranges::sort(keys);
      const std::vector<int32_t> tokens = TokenAtPosition(grid, order);
      for (size_t i = 0; i < keys.size(); ++i)
        ASSERT_EQ(tokens[static_cast<size_t>(grid.text_before) + i], keys[i][6])
            << TokenOrderName(order) << " " << i;
    }
  }
}

TEST(TokenGrid, HilbertIsTheCurveBetweenTheTexts) {
  const TokenGrid grid = {3, 4, 5, 2, 1};
  std::vector<int32_t> expected = {0, 1};
  for (int32_t cell : HilbertCells(3, 4, 5)) expected.push_back(2 + cell);
  expected.push_back(62);
  EXPECT_EQ(TokenAtPosition(grid, TokenOrder::kHilbert), expected);
}

// Going from an order to the home and on to the natural order is the order itself.
TEST(TokenGrid, TokensAreNumberedAlongTheHome) {
  for (const TokenGrid& natural : kGrids) {
    for (TokenOrder home : AllKinds()) {
      TokenGrid grid = natural;
      grid.home = home;
      const std::vector<int32_t> of_home = TokenAtPosition(natural, home);
      for (TokenOrder order : AllKinds()) {
        std::vector<int32_t> tokens = TokenAtPosition(grid, order);
        if (order == home) EXPECT_TRUE(std::ranges::is_sorted(tokens));
        for (int32_t& token : tokens) token = of_home[static_cast<size_t>(token)];
        EXPECT_EQ(tokens, TokenAtPosition(natural, order)) << TokenOrderName(home);
      }
    }
  }
}

}  // namespace
}  // namespace equitile
