#include "equitile/kernel/reference/attention_reference.h"

#include <cmath>
#include <limits>

#include "equitile/kernel/attention/attention_testing.h"

namespace equitile {
namespace {

using testing::Problem;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Softmax by hand: scores 0, ln 2 and ln 5 weigh 1, 2 and 5 eighths.
TEST(AttentionReference, ByHand) {
  Problem problem({.grid = {.q_tokens = 1, .kv_tokens = 3, .block_tokens = 16},
                   .head_dim = 8,
                   .density = 1.0f});
  for (int64_t d = 0; d < 8; ++d) {
    problem.q.view().Store(d == 3 ? 2.0f : 0.0f, 0, 0, 0, d);
    for (int64_t t = 0; t < 3; ++t) {
      problem.k.view().Store(d == 3 ? (t == 0 ? 0.0f : std::log(t == 1 ? 2.0f : 5.0f)) : 9.0f, 0, t,
                             0, d);
      problem.v.view().Store(static_cast<float>(100 * t + d), 0, t, 0, d);
    }
  }
  problem.args.scale = 0.5f;
  const AttentionReference reference = ReferenceAttentionRow(problem.args, 0);
  EXPECT_NEAR(reference.lse[0], std::log(8.0), 1e-6);
  for (int64_t d = 0; d < 8; ++d) {
    EXPECT_NEAR(reference.out[static_cast<size_t>(d)],
                100.0 * 2 / 8 + 200.0 * 5 / 8 + static_cast<double>(d), 1e-4);
  }
}

TEST(AttentionReference, BiasAndLeftOutKeys) {
  Problem problem({.grid = {.q_tokens = 2, .kv_tokens = 3, .block_tokens = 16},
                   .head_dim = 8,
                   .density = 1.0f});
  problem.args.scale = 0.0f;
  const float bias[2][3] = {{-kInfinity, std::log(3.0f), 0.0f},
                            {-kInfinity, -kInfinity, -kInfinity}};
  problem.args.bias = {.data = &bias[0][0], .q_stride = 3};
  const AttentionReference reference = ReferenceAttentionRow(problem.args, 0);
  EXPECT_NEAR(reference.lse[0], std::log(4.0), 1e-6);
  EXPECT_EQ(reference.lse[1], -kInfinity);
  for (int64_t d = 0; d < 8; ++d) {
    EXPECT_NEAR(reference.out[static_cast<size_t>(d)],
                0.75 * problem.v.view().Load(0, 1, 0, d) + 0.25 * problem.v.view().Load(0, 2, 0, d),
                1e-6);
    EXPECT_EQ(reference.out[static_cast<size_t>(8 + d)], 0.0);
  }
}

// Ordinary numbers leave little room: the tolerance is some hundred times the rounding of one
// operation, and shrinks with what is averaged.
TEST(AttentionReference, TheToleranceIsTight) {
  Problem problem({.grid = {.q_tokens = 64, .kv_tokens = 512, .block_tokens = 64},
                   .head_dim = 128,
                   .density = 1.0f});
  const AttentionReference reference = ReferenceAttentionRow(problem.args, 0);
  for (double tolerance : reference.out_tolerance) EXPECT_LT(tolerance, 4e-5);
  for (double tolerance : reference.lse_tolerance) EXPECT_LT(tolerance, 1e-4);
}

// A comparison that cannot fail would be worth nothing.
TEST(AttentionReference, TheComparisonNotices) {
  Problem problem({.lanes = {2, 2},
                   .grid = {.q_tokens = 40, .kv_tokens = 50, .block_tokens = 16},
                   .density = 1.0f});
  for (int64_t d = 0; d < 16; ++d) problem.q.view().Store(kNan, 1, 7, 1, d);
  problem.Run(1);
  std::vector<int64_t> all(static_cast<size_t>(problem.rows.Count()));
  std::iota(all.begin(), all.end(), 0);
  ASSERT_LE(CompareWithReference(problem.args, all).worst_fraction, 1.0);

  const View& out = problem.out.view();
  // Wrong by a little, a NaN too many, infinite, and a number where there should be a NaN.
  struct Change {
    int64_t token;
    float to;
  };
  for (const Change& change : {Change{38, out.Load(1, 38, 1, 5) + 1e-4f}, Change{38, kNan},
                               Change{38, kInfinity}, Change{7, 0.5f}}) {
    const float before = out.Load(1, change.token, 1, 5);
    out.Store(change.to, 1, change.token, 1, 5);
    const AttentionError error = CompareWithReference(problem.args, all);
    EXPECT_GT(error.worst_fraction, 1.0) << change.to;
    EXPECT_EQ(error.token, change.token);
    EXPECT_EQ(error.dim, 5);
    EXPECT_EQ(problem.rows.rows[static_cast<size_t>(error.row)].lane, 3);
    out.Store(before, 1, change.token, 1, 5);
  }
  float& lse = problem.lse[3 * 40 + 20];
  lse += 1e-3f;
  const AttentionError error = CompareWithReference(problem.args, all);
  EXPECT_GT(error.worst_fraction, 1.0);
  EXPECT_EQ(error.token, 20);
  EXPECT_EQ(error.dim, -1);
}

}  // namespace
}  // namespace equitile
