// Partial rows, computed over some of the kv blocks each, and their merging.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::MatchesReference;
using testing::Problem;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class MergeTest : public testing::TargetTest {};

// Every row cut into parts by block number; some parts see nothing of some rows.
TEST_P(MergeTest, PartsAreTheWhole) {
  for (const int parts : {2, 3, 7}) {
    for (const float score_size : {1.0f, 300.0f}) {
      Problem problem({.lanes = {1, 2},
                       .grid = {.q_tokens = 75, .kv_tokens = 203, .block_tokens = 16},
                       .head_dim = 24,
                       .density = 0.5f});
      problem.q.Fill(2, 0, score_size);
      const int64_t floats = problem.options.lanes.Count() * 75 * 24;
      const AttentionRows whole = problem.rows;
      std::vector<float> out(static_cast<size_t>(floats), 0.0f),
          lse(problem.lse.size(), -kInfinity);
      for (int part = 0; part < parts; ++part) {
        problem.rows = testing::PartOf(whole, part, parts);
        problem.Run();
        for (int64_t lane = 0; lane < 2; ++lane) {
          std::vector<float> partial;
          for (int64_t t = 0; t < 75; ++t) {
            for (int64_t d = 0; d < 24; ++d)
              partial.push_back(problem.out.view().Load(0, t, lane, d));
          }
          MergePartial(out.data() + lane * 75 * 24, lse.data() + lane * 75, partial.data(),
                       problem.lse.data() + lane * 75, 75, 24);
        }
      }
      problem.rows = whole;
      problem.lse = lse;
      problem.args.lse = problem.lse.data();
      for (int64_t lane = 0; lane < 2; ++lane) {
        for (int64_t t = 0; t < 75; ++t) {
          for (int64_t d = 0; d < 24; ++d) {
            problem.out.view().Store(out[static_cast<size_t>((lane * 75 + t) * 24 + d)], 0, t, lane,
                                     d);
          }
        }
      }
      EXPECT_TRUE(MatchesReference(problem)) << parts << " parts, scores of " << score_size;
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(MergeTest);

struct Partial {
  std::vector<float> out;
  float lse;
};

Partial Merge(Partial a, const Partial& b) {
  MergePartial(a.out.data(), &a.lse, b.out.data(), &b.lse, 1, static_cast<int64_t>(a.out.size()));
  return a;
}

const Partial kNothing = {{0.0f, 0.0f}, -kInfinity};
const Partial kSomething = {{1.5f, -3.0f}, 2.25f};

TEST(MergePartial, NothingOnEitherSideChangesNothing) {
  for (const Partial& merged : {Merge(kSomething, kNothing), Merge(kNothing, kSomething)}) {
    EXPECT_EQ(merged.out, kSomething.out);
    EXPECT_EQ(merged.lse, kSomething.lse);
  }
}

TEST(MergePartial, NothingOnBothSidesIsNothing) {
  const Partial merged = Merge(kNothing, kNothing);
  EXPECT_EQ(merged.out, kNothing.out);
  EXPECT_EQ(merged.lse, -kInfinity);
}

TEST(MergePartial, WeighsByLogSumExp) {
  const Partial merged = Merge({{1.0f, 8.0f}, std::log(3.0f)}, {{5.0f, 0.0f}, 0.0f});
  EXPECT_NEAR(merged.out[0], 2.0f, 1e-6);
  EXPECT_NEAR(merged.out[1], 6.0f, 1e-6);
  EXPECT_NEAR(merged.lse, std::log(4.0), 1e-6);
}

TEST(MergePartial, FarApart) {
  for (float far : {200.0f, 1e4f, 1e30f}) {
    for (const Partial& merged : {Merge({{7.0f, 1.0f}, -far}, {{5.0f, -2.0f}, far}),
                                  Merge({{5.0f, -2.0f}, far}, {{7.0f, 1.0f}, -far})}) {
      EXPECT_EQ(merged.out, (std::vector<float>{5.0f, -2.0f}));
      EXPECT_EQ(merged.lse, far);
    }
  }
}

TEST(MergePartial, NanStaysNanAndInItsToken) {
  const Partial bad = {{kNan, kNan}, kNan};
  for (const Partial& merged : {Merge(bad, kSomething), Merge(kSomething, bad),
                                Merge(bad, kNothing), Merge(kNothing, bad), Merge(bad, bad)}) {
    EXPECT_TRUE(std::isnan(merged.lse));
    for (float x : merged.out) EXPECT_TRUE(std::isnan(x));
  }
  // A NaN among the values only: that dim, and the weights stay right.
  const Partial value = Merge({{kNan, 1.0f}, 0.0f}, {{3.0f, 3.0f}, 0.0f});
  EXPECT_TRUE(std::isnan(value.out[0]));
  EXPECT_NEAR(value.out[1], 2.0f, 1e-6);

  std::vector<float> out = {1.0f, kNan, 3.0f}, lse = {0.0f, kNan, 0.0f};
  const std::vector<float> out2 = {3.0f, 1.0f, 5.0f}, lse2 = {0.0f, 0.0f, 0.0f};
  MergePartial(out.data(), lse.data(), out2.data(), lse2.data(), 3, 1);
  EXPECT_NEAR(out[0], 2.0f, 1e-6);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_NEAR(out[2], 4.0f, 1e-6);
}

}  // namespace
}  // namespace equitile
