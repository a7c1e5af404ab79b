#include "equitile/exec/home_rows.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

struct Case {
  const char* name;
  int64_t batch, tokens;
  int32_t ranks;
  std::vector<int64_t> homes;
  bool form_views;
};

class HomeRowsTest : public ::testing::TestWithParam<Case> {};

TEST_P(HomeRowsTest, NumberEveryHomeTokenOnceAndViewsFindThem) {
  const Case& test = GetParam();
  const Lanes lanes{.batch = test.batch, .heads = 3};
  const HomeMap homes(CheckedProblem(
      {.ranks = test.ranks,
       .lanes = lanes,
       .grid = {.q_tokens = test.tokens, .kv_tokens = test.tokens, .block_tokens = 16},
       .token_grid = {},
       .orders = {},
       .homes = test.homes}));
  constexpr int64_t kHeadDim = 8;
  int64_t total = 0;
  bool form_views = true;
  for (int32_t rank = 0; rank < test.ranks; ++rank) {
    const HomeRows home(homes, lanes, rank);
    std::vector<float> rows(static_cast<size_t>(home.Count() * lanes.heads * kHeadDim));
    int64_t row = 0;
    for (int64_t item = 0; item < test.batch; ++item) {
      EXPECT_EQ(home.TokensOf(item), homes.RankTokens(Side::kQuery, rank, item));
      for (int64_t token = home.TokensOf(item).begin; token < home.TokensOf(item).end; ++token) {
        EXPECT_EQ(home.RowOf(item, token), row);
        EXPECT_EQ(home.TokenOf(row).item, item);
        EXPECT_EQ(home.TokenOf(row).token, token);
        if (home.FormView()) {
          const float* at = rows.data() + (row * lanes.heads + 2) * kHeadDim;
          const int64_t stride = lanes.heads * kHeadDim;
          EXPECT_EQ(home.Input(rows.data(), kHeadDim, stride, kHeadDim).Address(item, token, 2, 0),
                    at);
          EXPECT_EQ(home.Output(rows.data(), kHeadDim).Address(item, token, 2, 0), at);
        }
        ++row;
      }
    }
    EXPECT_EQ(home.Count(), row);
    total += row;
    form_views &= home.FormView();
  }
  EXPECT_EQ(total, test.batch * test.tokens);
  EXPECT_EQ(form_views, test.form_views);
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, HomeRowsTest,
    ::testing::Values(Case{"Default", 3, 333, 5, {}, true}, Case{"OneRank", 4, 97, 1, {}, true},
                      Case{"TwoItems", 2, 100, 3, {0, 7, 7, 0, 50, 99}, true},
                      Case{"Alike", 3, 100, 2, {0, 33, 0, 33, 0, 33}, true},
                      Case{"Unlike", 3, 100, 2, {0, 33, 0, 34, 0, 33}, false},
                      Case{"ItemsApart", 3, 101, 2, {0, 101, 0, 0, 0, 101}, false}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace equitile
