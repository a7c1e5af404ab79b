#include "equitile/pattern/token_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

const std::vector<TokenGrid> kGrids = {
    {1, 1, 1, 0, 0}, {2, 3, 5, 0, 0}, {2, 3, 5, 7, 0},   {3, 2, 2, 0, 4},
    {5, 1, 3, 1, 1}, {1, 7, 1, 3, 2}, {13, 11, 3, 2, 9}, {0, 4, 4, 5, 3},
};

TEST(TokenGrid, Counts) {
  const TokenGrid grid = {2, 3, 5, 7, 11};
  EXPECT_EQ(grid.VideoTokens(), 30);
  EXPECT_EQ(grid.Tokens(), 48);
}

TEST(TokenGrid, EveryOrderIsAPermutationThatLeavesTheTextAlone) {
  for (const TokenGrid& grid : kGrids) {
    for (TokenOrder order : kTokenOrders) {
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
    for (TokenOrder order : kTokenOrders) {
      const std::vector<int32_t> tokens = TokenAtPosition(grid, order);
      const std::string_view axes = TokenOrderName(order);
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

TEST(TokenOrder, NamesAndAliases) {
  for (TokenOrder order : kTokenOrders) EXPECT_EQ(ParseTokenOrder(TokenOrderName(order)), order);
  EXPECT_EQ(ParseTokenOrder("frame_major"), TokenOrder::kFHW);
  EXPECT_EQ(ParseTokenOrder("space_major"), TokenOrder::kHWF);
  for (const char* bad : {"", "fh", "ffw", "FHW", "fhwx"}) {
    EXPECT_THROW(ParseTokenOrder(bad), InputError) << bad;
  }
}

}  // namespace
}  // namespace equitile
