#include "equitile/plan/core/home_map.h"

#include <gtest/gtest.h>

#include <map>

namespace equitile {
namespace {

struct Shape {
  int64_t batch, tokens, block;
  int32_t ranks;
  std::vector<int64_t> homes = {};
};

class HomeMapShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(HomeMapShapes, EveryTokenHasOneHomeAndPartsAgreeWithIt) {
  const auto [batch, tokens, block, ranks, first] = GetParam();
  const Problem problem{.ranks = ranks,
                        .lanes = {.batch = batch, .heads = 1},
                        .grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = block},
                        .token_grid = {},
                        .orders = {},
                        .homes = first};
  const HomeMap homes(problem);
  for (int64_t item = 0; item < batch; ++item) {
    for (int32_t rank = 0; rank < ranks && !first.empty(); ++rank) {
      EXPECT_EQ(homes.RankTokens(Side::kQuery, rank, item).begin,
                first[static_cast<size_t>(item * ranks + rank)]);
    }
    for (int64_t token = 0; token < tokens; ++token) {
      int found = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        if (!homes.RankTokens(Side::kQuery, rank, item).Contains(token)) continue;
        ++found;
        EXPECT_EQ(homes.RankOf(Side::kQuery, item, token), rank);
      }
      ASSERT_EQ(found, 1);
    }
    const int64_t blocks = problem.grid.QBlocks();
    for (Range range : {Range{0, blocks}, Range{0, 1}, Range{blocks - 1, blocks},
                        Range{blocks / 3, blocks / 2}}) {
      std::map<int32_t, int64_t> parts, expected;
      homes.ForEachPart(Side::kQuery, item, range,
                        [&](int32_t home, int64_t n) { parts[home] += n; });
      for (int64_t t = range.begin * block; t < std::min(range.end * block, tokens); ++t) {
        ++expected[homes.RankOf(Side::kQuery, item, t)];
      }
      EXPECT_EQ(parts, expected);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(homes.LocalTokens(Side::kQuery, item, range, rank),
                  expected.contains(rank) ? expected[rank] : 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Awkward, HomeMapShapes,
                         ::testing::Values(Shape{1, 4096, 64, 8}, Shape{1, 1000, 16, 7},
                                           Shape{2, 1000, 256, 4}, Shape{2, 130, 64, 3},
                                           Shape{1, 1, 64, 5}, Shape{3, 777, 48, 11},
                                           Shape{2, 4096, 64, 8},
                                           Shape{1, 1000, 16, 5, {0, 3, 3, 17, 640}},
                                           Shape{2, 130, 64, 3, {0, 0, 0, 0, 129, 130}},
                                           Shape{1, 257, 32, 4, {0, 257, 257, 257}},
                                           Shape{3, 97, 48, 2, {0, 0, 0, 97, 0, 41}}));

TEST(HomeMap, EachGuidancePassLivesOnHalfOfAnEvenNumberOfRanks) {
  const HomeMap homes({.ranks = 6,
                       .lanes = {.batch = 2, .heads = 3},
                       .grid = {.q_tokens = 1000, .kv_tokens = 1000, .block_tokens = 64},
                       .token_grid = {},
                       .orders = {}});
  EXPECT_EQ(homes.RankOf(Side::kQuery, 0, 999), 2);
  EXPECT_EQ(homes.RankOf(Side::kQuery, 1, 0), 3);
}

TEST(HomeMap, PartsOfABlockInAnotherOrderLieOnSeveralHomes) {
  Problem problem{
      .ranks = 4,
      .lanes = {.batch = 2, .heads = 2},
      .grid = {.q_tokens = 4 * 8 * 8 + 5, .kv_tokens = 4 * 8 * 8 + 5, .block_tokens = 32},
      .token_grid = {.frames = 4, .height = 8, .width = 8, .text_before = 2, .text_after = 3},
      .orders = {TokenOrder::kFHW, TokenOrder::kHWF, TokenOrder::kWFH, TokenOrder::kFHW}};
  for (const std::vector<int64_t>& first :
       {std::vector<int64_t>{}, {0, 1, 40, 40, 0, 77, 200, 261}}) {
    problem.homes = first;
    const HomeMap homes(problem);
    for (int64_t lane = 0; lane < 4; ++lane) {
      const auto token_at = TokenAtPosition(problem.token_grid, problem.OrderOf(lane));
      for (int64_t block = 0; block < problem.grid.QBlocks(); ++block) {
        std::map<int32_t, int64_t> parts, expected;
        homes.ForEachPart(Side::kKey, lane, {block, block + 1},
                          [&](int32_t home, int64_t n) { parts[home] += n; });
        const Range positions = problem.grid.QBlockTokens(block);
        for (int64_t p = positions.begin; p < positions.end; ++p) {
          ++expected[homes.RankOf(Side::kKey, problem.lanes.BatchOf(lane),
                                  token_at[static_cast<size_t>(p)])];
        }
        EXPECT_EQ(parts, expected) << "lane " << lane << " block " << block;
        for (int32_t rank = 0; rank < 4; ++rank) {
          EXPECT_EQ(homes.LocalTokens(Side::kKey, lane, {block, block + 1}, rank),
                    expected.contains(rank) ? expected[rank] : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace equitile
