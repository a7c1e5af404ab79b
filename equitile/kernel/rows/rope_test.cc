#include "equitile/kernel/rows/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"
#include "equitile/pattern/token_place.h"

namespace equitile {
namespace {

constexpr double kU = 0x1p-24;

TokenGrid Grid(int64_t frames, int64_t height, int64_t width) {
  TokenGrid grid;
  grid.frames = frames, grid.height = height, grid.width = width;
  return grid;
}

std::vector<float> Random(int64_t n, uint32_t stream) {
  const Rng rng(9, stream);
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = rng.NormalAt(i);
  return x;
}

// Angle of pair i of a head at (f, h, w), by the definition.
double AngleOf(int64_t pair, int64_t head_dim, int64_t f, int64_t h, int64_t w) {
  const int64_t small = 2 * (head_dim / 6), first = head_dim - 2 * small;
  int64_t channel = 2 * pair, axis = first, position = f;
  if (channel >= first + small) {
    channel -= first + small, axis = small, position = w;
  } else if (channel >= first) {
    channel -= first, axis = small, position = h;
  }
  return static_cast<double>(position) *
         std::pow(10000.0, -static_cast<double>(channel) / static_cast<double>(axis));
}

TEST(RopeTable, FrequenciesOfWan) {
  const RopeTable rope(Grid(2, 2, 2), 128);
  std::vector<float> cos(64), sin(64);
  rope.Angles(0, cos, sin);
  for (size_t i = 0; i < 64; ++i) EXPECT_TRUE(cos[i] == 1.0f && sin[i] == 0.0f) << i;
  rope.Angles(7, cos, sin);  // (1, 1, 1)
  EXPECT_FLOAT_EQ(sin[1], std::sin(.657933225f));
  EXPECT_FLOAT_EQ(sin[21], std::sin(1.519911e-4f));
  for (size_t axis : {22u, 43u}) {
    EXPECT_FLOAT_EQ(sin[axis], std::sin(1.0f));
    EXPECT_FLOAT_EQ(sin[axis + 1], std::sin(.644946677f));
    EXPECT_FLOAT_EQ(sin[axis + 20], std::sin(1.550516e-4f));
  }
}

class RopeTest : public testing::TargetTest {};

TEST_P(RopeTest, NormAndRotationAgainstDouble) {
  for (int64_t head_dim : {8, 24, 32, 64, 128, 136}) {
    const TokenGrid grid = Grid(3, 5, 7);
    const RopeTable rope(grid, head_dim);
    const int64_t tokens = grid.VideoTokens(), stride = 3 * head_dim + 1;
    const auto x = Random(tokens * stride, 1), inverse = Random(tokens, 2),
               weight = Random(2 * head_dim, 3);
    // Two heads; the second is looked at.
    std::vector<float> rows = x;
    NormAndRotate({rows.data(), stride, 2, inverse.data(), weight.data()}, rope, 0, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
        auto normed = [&](int64_t c) {
          return static_cast<double>(x[static_cast<size_t>(t * stride + head_dim + c)]) *
                 inverse[static_cast<size_t>(t)] * weight[static_cast<size_t>(head_dim + c)];
        };
        const double a = normed(2 * pair), b = normed(2 * pair + 1);
        const double angle = AngleOf(pair, head_dim, t / 35, t / 7 % 5, t % 7);
        const float* row = rows.data() + t * stride + head_dim + 2 * pair;
        // Two products for the norm, one rounded cosine or sine, a product and a sum.
        const double tolerance = 6.0 * kU * (std::fabs(a) + std::fabs(b)) + 1e-30;
        ASSERT_NEAR(row[0], a * std::cos(angle) - b * std::sin(angle), tolerance)
            << head_dim << ": token " << t << " pair " << pair;
        ASSERT_NEAR(row[1], a * std::sin(angle) + b * std::cos(angle), tolerance)
            << head_dim << ": token " << t << " pair " << pair;
      }
      for (int64_t c = 2 * head_dim; c < stride; ++c) {
        const auto beyond = static_cast<size_t>(t * stride + c);
        ASSERT_EQ(rows[beyond], x[beyond]);
      }
    }
  }
}

TEST_P(RopeTest, TokensDoNotDependOnTheCall) {
  constexpr int64_t kHeadDim = 40;
  const TokenGrid grid = Grid(3, 2, 5);
  const RopeTable rope(grid, kHeadDim);
  const int64_t tokens = grid.VideoTokens();
  const auto x = Random(tokens * kHeadDim, 1), inverse = Random(tokens, 2),
             weight = Random(kHeadDim, 3);
  std::vector<float> whole = x, parts = x;
  NormAndRotate({whole.data(), kHeadDim, 1, inverse.data(), weight.data()}, rope, 0, tokens);
  for (int64_t begin = 0; begin < tokens; begin += 4) {
    NormAndRotate(
        {parts.data() + begin * kHeadDim, kHeadDim, 1, inverse.data() + begin, weight.data()}, rope,
        begin, std::min<int64_t>(4, tokens - begin));
  }
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0);
}

// In any order at home a token turns by its own place in the video, in calls of any size.
TEST_P(RopeTest, OrdersAtHomeTurnByPlace) {
  constexpr int64_t kHeadDim = 40;
  for (TokenOrder home : {TokenOrder::kHilbert, TokenOrder::kHWF, TokenOrder::Tiles(2, 2, 3)}) {
    TokenGrid grid = Grid(3, 4, 5);
    const RopeTable natural(grid, kHeadDim);
    grid.home = home;
    const RopeTable rope(grid, kHeadDim);
    const std::vector<int32_t> places = PlaceOfToken(grid);
    const int64_t tokens = grid.VideoTokens();
    const auto x = Random(tokens * kHeadDim, 1), inverse = Random(tokens, 2),
               weight = Random(kHeadDim, 3);
    std::vector<float> rows = x;
    for (int64_t begin = 0; begin < tokens; begin += 7) {
      NormAndRotate(
          {rows.data() + begin * kHeadDim, kHeadDim, 1, inverse.data() + begin, weight.data()},
          rope, begin, std::min<int64_t>(7, tokens - begin));
    }
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> row(x.begin() + t * kHeadDim, x.begin() + (t + 1) * kHeadDim);
      NormAndRotate({row.data(), kHeadDim, 1, inverse.data() + t, weight.data()}, natural,
                    places[static_cast<size_t>(t)], 1);
      EXPECT_EQ(std::memcmp(row.data(), rows.data() + t * kHeadDim, kHeadDim * sizeof(float)), 0)
          << TokenOrderName(home) << " token " << t;
    }
  }
}

TEST_P(RopeTest, FirstTokenIsOnlyNormed) {
  constexpr int64_t kHeadDim = 32;
  const auto x = Random(kHeadDim, 1), weight = Random(kHeadDim, 3);
  const float inverse = 0.7f;
  const NormedHead head = {x.data(), kHeadDim, &inverse, weight.data()};
  std::vector<float> normed(x.size()), rotated = x;
  NormHeadRows(head, kHeadDim, 1, normed.data());
  NormAndRotate({rotated.data(), kHeadDim, 1, &inverse, weight.data()},
                RopeTable(Grid(2, 2, 2), kHeadDim), 0, 1);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(normed[i], rotated[i]);
    EXPECT_EQ(normed[i], x[i] * inverse * weight[i]);
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(RopeTest);

}  // namespace
}  // namespace equitile
