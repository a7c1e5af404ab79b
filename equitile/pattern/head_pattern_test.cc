#include "equitile/pattern/head_pattern.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// A token of the grid by what it is, not by where a lane puts it.
struct Token {
  bool is_text = false;
  int64_t frame = 0, place = 0;  // place: h * width + w
  int64_t home = 0;              // its number among the video's tokens in home order
};

std::vector<Token> TokensAtHome(const TokenGrid& grid) {
  TokenGrid natural = grid;
  natural.home = TokenOrder::kFHW;
  const std::vector<int32_t> at_home = TokenAtPosition(natural, grid.home);
  std::vector<Token> tokens(at_home.size());
  for (size_t t = 0; t < tokens.size(); ++t) {
    const int64_t cell = at_home[t] - grid.text_before;
    tokens[t].is_text = cell < 0 || cell >= grid.VideoTokens();
    if (tokens[t].is_text) continue;
    tokens[t].frame = cell / (grid.height * grid.width);
    tokens[t].place = cell % (grid.height * grid.width);
    tokens[t].home = static_cast<int64_t>(t) - grid.text_before;
  }
  return tokens;
}

bool Belong(const HeadPattern& head, const TokenGrid& grid, const Token& q, const Token& k) {
  if (head.mode == HeadMode::kSkip) return false;
  if (q.is_text || k.is_text || head.mode == HeadMode::kFull) return true;
  const int64_t places = grid.height * grid.width;
  const auto within = [&](int64_t a, int64_t b, int64_t unit) {
    return static_cast<double>(std::abs(a - b)) <=
           std::round(head.size * static_cast<double>(unit));
  };
  if (head.mode == HeadMode::kDiagonal)
    return within(q.frame * places + q.place, k.frame * places + k.place, places);
  if (head.mode == HeadMode::kMultiDiagonal)
    return within(q.place * grid.frames + q.frame, k.place * grid.frames + k.frame, grid.frames);
  for (const Range& column : head.columns)
    if (column.Contains(k.home)) return true;
  return false;
}

TokenOrder ExpectedOrder(const HeadPattern& head, const TokenGrid& grid) {
  if (head.mode == HeadMode::kDiagonal) return TokenOrder::kFHW;
  return head.mode == HeadMode::kMultiDiagonal ? TokenOrder::kHWF : grid.home;
}

// Every pair of tokens of every pair of blocks.
BlockMask SlowMask(const HeadPattern& head, const TokenGrid& grid, int64_t block_tokens) {
  const BlockGrid blocks = {grid.Tokens(), grid.Tokens(), block_tokens};
  const std::vector<Token> tokens = TokensAtHome(grid);
  const std::vector<int32_t> at = TokenAtPosition(grid, ExpectedOrder(head, grid));
  BlockMask mask({1, 1}, blocks);
  for (int64_t p = 0; p < grid.Tokens(); ++p) {
    for (int64_t c = 0; c < grid.Tokens(); ++c) {
      const Token& q = tokens[static_cast<size_t>(at[static_cast<size_t>(p)])];
      const Token& k = tokens[static_cast<size_t>(at[static_cast<size_t>(c)])];
      if (Belong(head, grid, q, k)) mask.Set(0, p / block_tokens, c / block_tokens);
    }
  }
  return mask;
}

std::vector<HeadPattern> SomeHeads(const TokenGrid& grid) {
  std::vector<HeadPattern> heads = {
      {HeadMode::kFull, 0, {}}, {HeadMode::kSkip, 0, {}}, {HeadMode::kMean, 0, {}}};
  for (double size : {0.0, 0.1, 0.5, 1.0, 2.5, 1e300}) {
    heads.push_back({HeadMode::kDiagonal, size, {}});
    heads.push_back({HeadMode::kMultiDiagonal, size, {}});
  }
  const int64_t n = grid.VideoTokens();
  heads.push_back({HeadMode::kStripes, 0, {{0, 1}}});
  heads.push_back({HeadMode::kStripes, 0, {{n - 1, n}}});
  heads.push_back({HeadMode::kStripes, 0, {{0, n}}});
  if (n > 40) heads.push_back({HeadMode::kStripes, 0, {{3, 4}, {17, 30}, {n - 5, n - 2}}});
  return heads;
}

const std::vector<TokenGrid> kGrids = {{1, 1, 1},         {3, 4, 5},        {2, 7, 11},
                                       {5, 3, 4, 7, 0},   {4, 5, 3, 0, 20}, {7, 1, 13, 16, 5},
                                       {13, 2, 3, 33, 31}};

TEST(HeadPattern, MasksAreTheirDefinition) {
  for (TokenGrid grid : kGrids) {
    for (TokenOrder home : {TokenOrder::kFHW, TokenOrder::kHilbert, TokenOrder::Tiles(2, 2, 2)}) {
      grid.home = home;
      const std::vector<HeadPattern> heads = SomeHeads(grid);
      for (int64_t block : {16, 48}) {
        const LaneMasks masks = MakePatternMasks(heads, 2, grid, block);
        for (int64_t lane = 0; lane < masks.blocks().LaneCount(); ++lane) {
          const HeadPattern& head = heads[static_cast<size_t>(lane) % heads.size()];
          const BlockMask slow = SlowMask(head, grid, block);
          for (int64_t q = 0; q < slow.QBlocks(); ++q) {
            ASSERT_EQ(masks.blocks().KeptInRow(lane, q), slow.KeptInRow(0, q))
                << HeadModeName(head.mode) << " " << head.size << " on " << grid.frames << "x"
                << grid.height << "x" << grid.width << ", text " << grid.text_before << " and "
                << grid.text_after << ", " << TokenOrderName(home) << ", block " << block
                << ", row " << q;
          }
          ASSERT_EQ(masks.orders()[static_cast<size_t>(lane)], ExpectedOrder(head, grid));
          ASSERT_EQ(masks.TailOf(lane), head.mode == HeadMode::kMean ? Tail::kMean : Tail::kNone);
        }
      }
    }
  }
}

// wan-mini's grid: four blocks of 64 tokens in a frame, about five places in a block.
TEST(HeadPattern, BandsOfAFamiliarGrid) {
  const TokenGrid grid = {13, 16, 16};
  const auto row = [&](HeadMode mode, double size, int64_t q) {
    const HeadPattern head = {mode, size, {}};
    return MakePatternMasks({&head, 1}, 1, grid, 64).blocks().KeptInRow(0, q);
  };
  EXPECT_EQ(row(HeadMode::kDiagonal, 0, 20), (std::vector<int32_t>{20}));
  EXPECT_EQ(row(HeadMode::kDiagonal, 0.25, 20), (std::vector<int32_t>{19, 20, 21}));
  EXPECT_EQ(row(HeadMode::kDiagonal, 0.5, 51), (std::vector<int32_t>{49, 50, 51}));
  EXPECT_EQ(row(HeadMode::kMultiDiagonal, 5, 20), (std::vector<int32_t>{18, 19, 20, 21, 22}));
  EXPECT_EQ(row(HeadMode::kMultiDiagonal, 4, 0), (std::vector<int32_t>{0, 1}));
}

TEST(HeadPattern, BandsMeetADensity) {
  for (const TokenGrid& grid :
       std::vector<TokenGrid>{{13, 16, 16}, {21, 30, 52}, {7, 9, 11, 20, 3}}) {
    for (HeadMode mode : {HeadMode::kDiagonal, HeadMode::kMultiDiagonal}) {
      double last = 0;
      for (double density : kLadderDensities) {
        const HeadPattern band = BandOfDensity(mode, density, grid, 64);
        const double is = PatternDensity(band, grid, 64);
        const double blocks = static_cast<double>(CeilDiv(grid.Tokens(), 64));
        EXPECT_GE(is, last);
        last = is;
        // One more or less on either side of the diagonal.
        const double least = PatternDensity({mode, 0, {}}, grid, 64);
        EXPECT_LE(std::abs(is - density), std::max(1 / blocks, least - density)) << density;
      }
    }
  }
  // The published width: n (1 - sqrt(1 - s)) blocks on either side.
  const HeadPattern band = BandOfDensity(HeadMode::kDiagonal, 0.3, {13, 16, 16}, 64);
  const double blocks = 52 * (1 - std::sqrt(1 - 0.3));
  EXPECT_NEAR(band.size * 4, blocks, 1);
  EXPECT_EQ(
      PatternDensity(BandOfDensity(HeadMode::kDiagonal, 1, {13, 16, 16}, 64), {13, 16, 16}, 64), 1);
}

TEST(HeadPattern, ColumnsKeepTheirShareOnAnotherGrid) {
  const TokenGrid from = {2, 4, 4};
  const HeadPattern head = {HeadMode::kStripes, 0, {{0, 4}, {6, 8}, {31, 32}}};
  EXPECT_EQ(OnGrid(head, from, from), head);
  EXPECT_EQ(OnGrid(head, from, {4, 4, 4}).columns,
            (std::vector<Range>{{0, 8}, {12, 16}, {62, 64}}));
  EXPECT_EQ(OnGrid(head, from, {1, 3, 3}).columns, (std::vector<Range>{{0, 3}, {8, 9}}));
  for (const TokenGrid& to : kGrids) {
    if (to.VideoTokens() > 1) EXPECT_NO_THROW(CheckHeadPattern(OnGrid(head, from, to), to));
  }
  const HeadPattern band = {HeadMode::kDiagonal, 1.5, {}};
  EXPECT_EQ(OnGrid(band, from, {21, 30, 52}), band);
}

TEST(HeadPattern, RefusesWhatIsNoPattern) {
  const TokenGrid grid = {3, 4, 5};
  for (const HeadPattern& bad :
       std::vector<HeadPattern>{{HeadMode::kDiagonal, -0.5, {}},
                                {HeadMode::kMultiDiagonal, NAN, {}},
                                {HeadMode::kDiagonal, INFINITY, {}},
                                {HeadMode::kStripes, 0, {}},
                                {HeadMode::kStripes, 0, {{3, 3}}},
                                {HeadMode::kStripes, 0, {{-1, 3}}},
                                {HeadMode::kStripes, 0, {{59, 61}}},
                                {HeadMode::kStripes, 0, {{5, 9}, {2, 4}}},
                                {HeadMode::kStripes, 0, {{5, 9}, {9, 10}}}}) {
    EXPECT_THROW(MakePatternMasks({&bad, 1}, 1, grid, 16), InputError);
  }
  const HeadPattern full;
  EXPECT_THROW(MakePatternMasks({&full, 1}, 1, grid, 17), InputError);
  EXPECT_THROW(MakePatternMasks({&full, 1}, 0, grid, 16), InputError);
  EXPECT_THROW(MakePatternMasks({}, 1, grid, 16), InputError);
}

TEST(HeadMode, NamesAreOneToOne) {
  for (HeadMode mode : kHeadModes) EXPECT_EQ(ParseHeadMode(HeadModeName(mode)), mode);
  for (const char* bad : {"", "Full", "stripe", "multidiagonal"})
    EXPECT_THROW(ParseHeadMode(bad), InputError);
}

}  // namespace
}  // namespace equitile
