#include "equitile/pattern/token_place.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

// Whatever text there is, the video's tokens are counted from 0; what stands at a place in fhw is
// the token whose place it is.
TEST(TokenPlace, IsThatOfTheHomeOrder) {
  for (TokenGrid grid : {TokenGrid{1, 1, 1}, {3, 4, 5}, {2, 7, 11, 3, 0}, {5, 3, 4, 7, 20}}) {
    for (TokenOrder home : {TokenOrder::kFHW, TokenOrder::kWHF, TokenOrder::kHWF,
                            TokenOrder::kHilbert, TokenOrder::Tiles(2, 2, 3)}) {
      grid.home = home;
      const std::vector<int32_t> places = PlaceOfToken(grid);
      if (home == TokenOrder::kFHW) {
        EXPECT_TRUE(places.empty());
        continue;
      }
      const std::vector<int32_t> natural = TokenAtPosition(grid, TokenOrder::kFHW);
      ASSERT_EQ(std::ssize(places), grid.VideoTokens());
      for (size_t token = 0; token < places.size(); ++token) {
        const auto at = static_cast<size_t>(grid.text_before + places[token]);
        EXPECT_EQ(natural[at], grid.text_before + static_cast<int64_t>(token));
      }
    }
  }
}

}  // namespace
}  // namespace equitile
