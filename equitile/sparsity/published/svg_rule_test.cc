#include "equitile/sparsity/published/svg_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"

namespace equitile {
namespace {

const std::vector<TokenGrid> kGrids = {
    {1, 1, 1}, {5, 4, 4}, {13, 3, 7}, {4, 5, 6, 9, 0}, {3, 5, 5, 17, 21}};

// |q - k| <= width or the key in the sink, for any pair of a block; text with everything.
TEST(SvgRule, MaskIsItsDefinition) {
  for (const TokenGrid& grid : kGrids) {
    for (int64_t block : {16, 32}) {
      for (double density : {0.1, 0.3, 1.0}) {
        const BlockMask mask = SvgMask(grid, block, {.density = density});
        const int64_t n = grid.Tokens(), text = grid.text_before + grid.text_after;
        const double share = std::max(
            0.0, (density * static_cast<double>(n * n) - 2.0 * static_cast<double>(n * text)) /
                     static_cast<double>(n * n));
        const double exact = static_cast<double>(n) * (1 - std::sqrt(1 - share));
        const int64_t width =
            static_cast<int64_t>(std::ceil(exact / static_cast<double>(block))) * block;
        BlockMask slow({1, 1}, {n, n, block});
        const auto is_text = [&](int64_t p) {
          return p < grid.text_before || p >= n - grid.text_after;
        };
        for (int64_t q = 0; q < n; ++q) {
          for (int64_t k = 0; k < n; ++k) {
            const bool sink = k - grid.text_before < grid.height * grid.width;
            if (is_text(q) || is_text(k) || sink || std::abs(q - k) <= width)
              slow.Set(0, q / block, k / block);
          }
        }
        EXPECT_EQ(mask, slow) << grid.frames << "x" << grid.height << "x" << grid.width << ", "
                              << block << ", " << density;
      }
    }
  }
}

TEST(SvgRule, SampleIsSteadyAndOfTheVideo) {
  const TokenGrid grid = {5, 6, 7, 11, 3};
  const std::vector<int64_t> tokens = SvgSampledTokens(grid, {});
  EXPECT_EQ(tokens.size(), 64u);
  EXPECT_EQ(tokens, SvgSampledTokens(grid, {}));
  EXPECT_NE(tokens, SvgSampledTokens(grid, {.seed = 2}));
  EXPECT_TRUE(std::ranges::is_sorted(tokens));
  EXPECT_GE(tokens.front(), 11);
  EXPECT_LT(tokens.back(), 11 + 210);
  EXPECT_EQ(SvgSampledTokens({1, 2, 3}, {}).size(), 6u);
  EXPECT_THROW(SvgSampledTokens(grid, {.sampled_rows = 0}), InputError);
}

// A head that looks only into its own frame is spatial; one that looks only at its own place is
// temporal; wherever tokens are kept.
TEST(SvgRule, FindsWhatAHeadLooksAt) {
  for (TokenOrder home : {TokenOrder::kFHW, TokenOrder::kHilbert}) {
    const TokenGrid natural = {12, 8, 8};
    TokenGrid grid = natural;
    grid.home = home;
    const std::vector<int32_t> cell = TokenAtPosition(natural, home);
    const SvgOptions options = {.density = 0.3};
    const BlockMask mask = SvgMask(grid, 16, options);
    const std::vector<int64_t> tokens = SvgSampledTokens(grid, options);
    // Queries and keys say where they look: one dim per place, or per frame.
    constexpr int64_t kDim = 64;
    const Rng rng(7);
    std::vector<float> values;
    for (int64_t i = 0; i < grid.Tokens() * kDim; ++i)
      values.push_back(rng.NormalAt(static_cast<uint64_t>(i)));
    ThreadPool pool(2);
    SvgScratch scratch;
    for (bool temporal : {false, true}) {
      std::vector<float> keys(values.size(), 0.0f), queries;
      for (int64_t token = 0; token < grid.Tokens(); ++token) {
        const int64_t at = cell[static_cast<size_t>(token)];
        keys[static_cast<size_t>(token * kDim + (temporal ? at % 64 : at / 64))] = 1.0f;
      }
      for (int64_t token : tokens)
        queries.insert(queries.end(), keys.begin() + token * kDim,
                       keys.begin() + (token + 1) * kDim);
      SvgSample sample{tokens, queries, keys, values, 10.0f};
      EXPECT_EQ(ChooseSvgOrder(sample, mask, grid, pool, scratch),
                temporal ? TokenOrder::kHWF : TokenOrder::kFHW);
      queries[5] = NAN;
      EXPECT_THROW(ChooseSvgOrder(sample, mask, grid, pool, scratch), InputError);
      // Nothing to choose: spatial.
      const std::vector<float> even(keys.size(), 0.0f), ones(values.size(), 1.0f);
      sample = {tokens, std::span(even).first(queries.size()), even, ones, 10.0f};
      EXPECT_EQ(ChooseSvgOrder(sample, mask, grid, pool, scratch), TokenOrder::kFHW);
    }
  }
}

TEST(SvgRule, RefusesDensitiesThatAreNone) {
  for (double density : {0.0, -1.0, 1.5, static_cast<double>(NAN)})
    EXPECT_THROW(SvgMask({3, 4, 5}, 16, {.density = density}), InputError);
}

}  // namespace
}  // namespace equitile
