// Attention on numbers that go wrong first: large, tiny, constant, infinite, NaN, biased.
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::LaidOut;
using testing::MatchesReference;
using testing::Problem;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class AttentionNumerics : public testing::TargetTest {};

// Element (token, dim) of every lane := f(token, dim).
void Set(const LaidOut& x, const std::function<float(int64_t token, int64_t dim)>& f) {
  const Shape& s = x.view().shape();
  for (int64_t b = 0; b < s[0]; ++b) {
    for (int64_t t = 0; t < s[1]; ++t) {
      for (int64_t h = 0; h < s[2]; ++h) {
        for (int64_t d = 0; d < s[3]; ++d) x.view().Store(f(t, d), b, t, h, d);
      }
    }
  }
}

TEST_P(AttentionNumerics, ScaleZeroIsTheMean) {
  Problem problem(
      {.grid = {.q_tokens = 40, .kv_tokens = 150, .block_tokens = 32}, .density = 1.0f});
  problem.args.scale = 0.0f;
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
  EXPECT_NEAR(problem.lse[0], std::log(150.0), 1e-6);
}

// Scores up to 1e4 either way, in every direction that the running maximum can move.
TEST_P(AttentionNumerics, LargeScores) {
  constexpr int64_t kKeys = 403;
  const std::function<float(int64_t)> kShapes[] = {
      [](int64_t t) { return static_cast<float>(t) * 1e4f / kKeys; },  // rises in every chunk
      [](int64_t t) { return 1e4f - static_cast<float>(t) * 1e4f / kKeys; },
      [](int64_t t) { return t % 2 == 0 ? 1e4f : -1e4f; },
      [](int64_t t) { return t == kKeys - 1 ? 1e4f : -1e4f; },  // only the last counts
      [](int64_t t) { return t == 0 ? 1e4f : -1e4f; },
      [](int64_t) { return -1e4f; },
  };
  for (const auto& shape : kShapes) {
    Problem problem({.grid = {.q_tokens = 35, .kv_tokens = kKeys, .block_tokens = 48},
                     .head_dim = 8,
                     .density = 1.0f});
    Set(problem.q,
        [](int64_t t, int64_t d) { return d == 0 ? (t % 3 == 0 ? -1.0f : 1.0f) : 0.0f; });
    Set(problem.k, [&](int64_t t, int64_t) { return shape(t); });
    problem.args.scale = 1.0f;
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem));
  }
}

TEST_P(AttentionNumerics, LargeRandomScores) {
  for (float size : {30.0f, 1000.0f, 1e4f}) {
    Problem problem({.lanes = {1, 2},
                     .grid = {.q_tokens = 64, .kv_tokens = 300, .block_tokens = 32},
                     .head_dim = 64});
    problem.q.Fill(9, 0, size);
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem)) << size;
  }
}

// Equal keys: the mean of the values, whatever the score is.
TEST_P(AttentionNumerics, ConstantRows) {
  for (float key : {0.0f, 1.0f, -3.0f, 700.0f, -700.0f}) {
    Problem problem({.grid = {.q_tokens = 33, .kv_tokens = 200, .block_tokens = 16}});
    Set(problem.k, [&](int64_t, int64_t) { return key; });
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem)) << key;
  }
}

TEST_P(AttentionNumerics, Denormals) {
  Problem problem(
      {.grid = {.q_tokens = 20, .kv_tokens = 140, .block_tokens = 32}, .density = 1.0f});
  problem.q.Fill(1, 0, 1e-40f);
  problem.k.Fill(1, 1, 1e-40f);
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
  EXPECT_NEAR(problem.lse[0], std::log(140.0), 1e-6);

  // Values that are denormal are averaged as well as their last place allows.
  Set(problem.v, [](int64_t, int64_t) { return 1e-40f; });
  problem.Run();
  for (int64_t d = 0; d < 16; ++d)
    EXPECT_NEAR(problem.out.view().Load(0, 5, 0, d), 1e-40, 4 * 0x1p-149);
}

// Beyond what f32 can say, the answer is an infinity or a NaN, or what the limit is; never a
// plausible number that is wrong, and never somebody else's.
TEST_P(AttentionNumerics, HugeScores) {
  for (float size : {1e6f, 1e9f, 1e12f, 1e19f, 1e30f, 1e37f}) {
    Problem problem({.grid = {.q_tokens = 17, .kv_tokens = 150, .block_tokens = 32},
                     .head_dim = 8,
                     .density = 1.0f});
    // One key stands out by far: all weight is on it.
    Set(problem.q, [&](int64_t, int64_t d) { return d == 0 ? 1.0f : 0.0f; });
    for (int64_t winner : {0, 77, 149}) {
      Set(problem.k, [&](int64_t t, int64_t) {
        return (t == winner ? 1.1f : 0.4f + 0.001f * static_cast<float>(t)) * size;
      });
      problem.args.scale = 1.0f;
      problem.Run();
      for (int64_t t = 0; t < 17; ++t) {
        for (int64_t d = 0; d < 8; ++d) {
          EXPECT_NEAR(problem.out.view().Load(0, t, 0, d), problem.v.view().Load(0, winner, 0, d),
                      1e-6)
              << "scores of " << size << ", winner " << winner << ", token " << t;
        }
        EXPECT_NEAR(problem.Lse(0, t) / size, 1.1, 1e-6) << "scores of " << size;
      }
    }
  }
}

TEST_P(AttentionNumerics, ScoresThatOverflow) {
  Problem problem({.grid = {.q_tokens = 20, .kv_tokens = 150, .block_tokens = 32},
                   .head_dim = 8,
                   .density = 1.0f});
  // Query 3 makes every score +inf: no number is right. Query 4 makes them -inf: as if there were
  // no keys, or NaN. The others do not notice.
  Set(problem.q, [](int64_t t, int64_t d) {
    return t == 3 ? 1e38f : t == 4 ? -1e38f : 0.1f * static_cast<float>(t - d);
  });
  Set(problem.k, [](int64_t t, int64_t d) { return 1.0f + static_cast<float>(t + d); });
  problem.args.scale = 1.0f;
  problem.Run();
  EXPECT_TRUE(std::isnan(problem.out.view().Load(0, 3, 0, 0)));
  EXPECT_FALSE(std::isfinite(problem.Lse(0, 3)));
  const float fourth = problem.out.view().Load(0, 4, 0, 0);
  EXPECT_TRUE(std::isnan(fourth) || fourth == 0.0f) << fourth;
  EXPECT_FALSE(std::isfinite(problem.Lse(0, 4)));
  Set(problem.q, [](int64_t t, int64_t d) {
    return t == 3 || t == 4 ? 0.0f : 0.1f * static_cast<float>(t - d);
  });
  Problem clean(problem.options);
  clean.args.q = problem.args.q;
  clean.args.k = problem.args.k;
  clean.args.v = problem.args.v;
  clean.args.scale = 1.0f;
  clean.Run();
  for (int64_t t = 0; t < 20; ++t) {
    if (t == 3 || t == 4) continue;
    EXPECT_NEAR(problem.Lse(0, t), clean.Lse(0, t), 1e-3 * std::fabs(clean.Lse(0, t))) << t;
    for (int64_t d = 0; d < 8; ++d) {
      EXPECT_NEAR(problem.out.view().Load(0, t, 0, d), clean.out.view().Load(0, t, 0, d), 1e-3)
          << "token " << t;
    }
  }
}

TEST_P(AttentionNumerics, HugeValues) {
  Problem problem(
      {.grid = {.q_tokens = 20, .kv_tokens = 150, .block_tokens = 32}, .density = 1.0f});
  Set(problem.v, [](int64_t t, int64_t d) { return d == 1 ? 1e38f : static_cast<float>(t); });
  problem.Run();
  for (int64_t t = 0; t < 20; ++t) {
    const float huge = problem.out.view().Load(0, t, 0, 1);
    EXPECT_TRUE(huge == kInfinity || std::fabs(huge / 1e38f - 1.0f) < 1e-5f) << huge;
    EXPECT_TRUE(std::isfinite(problem.out.view().Load(0, t, 0, 0)));
  }
}

TEST_P(AttentionNumerics, OutputThatHalvesCannotHold) {
  Problem problem({.grid = {.q_tokens = 20, .kv_tokens = 40, .block_tokens = 32},
                   .out = DType::kF16,
                   .density = 1.0f});
  Set(problem.v, [](int64_t, int64_t d) { return d == 0 ? 1e5f : d == 1 ? -1e5f : 1.0f; });
  problem.Run();
  EXPECT_EQ(problem.out.view().Load(0, 19, 0, 0), kInfinity);
  EXPECT_EQ(problem.out.view().Load(0, 19, 0, 1), -kInfinity);
  EXPECT_EQ(problem.out.view().Load(0, 19, 0, 2), 1.0f);
}

// NaN in a query, in one dim, in any storage type: that query and no other.
TEST_P(AttentionNumerics, NanInAQueryStaysInItsToken) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t bad : {0, 15, 16, 37, 48, 52}) {
      Problem problem({.lanes = {2, 2},
                       .grid = {.q_tokens = 53, .kv_tokens = 150, .block_tokens = 48},
                       .in = dtype,
                       .density = 1.0f});
      const auto clean = problem.Bits();
      problem.q.view().Store(kNan, 1, bad, 0, 11);
      problem.Run();
      const auto* out = clean.out.data();
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t t = 0; t < 53; ++t) {
            const bool is_bad = b == 1 && h == 0 && t == bad;
            EXPECT_EQ(std::isnan(problem.Lse(b * 2 + h, t)), is_bad);
            for (int64_t d = 0; d < 16; ++d) {
              const float got = problem.out.view().Load(b, t, h, d);
              ASSERT_EQ(std::isnan(got), is_bad) << "token " << t << " of " << bad;
              if (is_bad) continue;
              const auto at = problem.out.view().Offset(b, t, h, d) * 4;
              ASSERT_EQ(std::memcmp(&got, out + at, 4), 0) << "token " << t << ", NaN in " << bad;
            }
          }
        }
      }
    }
  }
}

// NaN in a key or a value, however little it would weigh: every query that keeps the block, in the
// dims it reaches, and no other.
TEST_P(AttentionNumerics, NanInAKeyOrValueReachesWhoKeepsTheBlock) {
  for (const bool in_key : {true, false}) {
    for (int64_t bad : {0, 40, 127, 129, 149}) {
      Problem problem({.lanes = {1, 2},
                       .grid = {.q_tokens = 90, .kv_tokens = 150, .block_tokens = 32},
                       .density = 0.5f});
      const auto clean = problem.Bits();
      (in_key ? problem.k : problem.v).view().Store(kNan, 0, bad, 1, 6);
      problem.Run();
      for (int64_t row = 0; row < problem.rows.Count(); ++row) {
        const auto [lane, q_block] = problem.rows.rows[static_cast<size_t>(row)];
        const auto kept = problem.rows.KvBlocks(row);
        const bool reached = lane == 1 && std::count(kept.begin(), kept.end(), bad / 32) > 0;
        const Range tokens = problem.args.grid.QBlockTokens(q_block);
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
          EXPECT_EQ(std::isnan(problem.Lse(lane, t)), reached && in_key);
          for (int64_t d = 0; d < 16; ++d) {
            const float got = problem.out.view().Load(0, t, lane, d);
            if (reached && (in_key || d == 6)) {
              ASSERT_TRUE(std::isnan(got)) << "lane " << lane << ", token " << t << ", dim " << d;
            } else {
              const auto at = problem.out.view().Offset(0, t, lane, d) * 4;
              ASSERT_EQ(std::memcmp(&got, clean.out.data() + at, 4), 0)
                  << "lane " << lane << ", token " << t << ", dim " << d;
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionNumerics, NanValueWithoutWeight) {
  Problem problem(
      {.grid = {.q_tokens = 16, .kv_tokens = 300, .block_tokens = 16}, .density = 1.0f});
  std::vector<float> bias(300, 0.0f);
  bias[250] = -1e30f;
  problem.args.bias = {.data = bias.data()};
  problem.v.view().Store(kNan, 0, 250, 0, 2);
  problem.Run();
  EXPECT_TRUE(std::isnan(problem.out.view().Load(0, 3, 0, 2)));
  EXPECT_FALSE(std::isnan(problem.out.view().Load(0, 3, 0, 1)));
}

class AttentionBiasTest : public testing::TargetTest {
 protected:
  // Some biases, some of them -inf.
  static std::vector<float> Biases(int64_t n, float deviation, double left_out) {
    std::vector<float> bias(static_cast<size_t>(n));
    const Rng rng(8);
    for (size_t i = 0; i < bias.size(); ++i)
      bias[i] = rng.UniformAt(i) < left_out ? -kInfinity : deviation * rng.NormalAt(i);
    return bias;
  }
};

TEST_P(AttentionBiasTest, PerKey) {
  for (double left_out : {0.0, 0.3}) {
    for (float deviation : {1.0f, 100.0f}) {
      Problem problem(
          {.lanes = {2, 2}, .grid = {.q_tokens = 45, .kv_tokens = 211, .block_tokens = 32}});
      const auto bias = Biases(211, deviation, left_out);
      problem.args.bias = {.data = bias.data()};
      problem.Run();
      EXPECT_TRUE(MatchesReference(problem)) << deviation << " " << left_out;
    }
  }
}

TEST_P(AttentionBiasTest, PerBatchHeadQueryAndKey) {
  Problem problem({.lanes = {2, 3},
                   .grid = {.q_tokens = 53, .kv_tokens = 139, .block_tokens = 32},
                   .head_dim = 24});
  const auto bias = Biases(2 * 3 * 53 * 140, 2.0f, 0.2);
  problem.args.bias = {.data = bias.data(),
                       .batch_stride = 3 * 53 * 140,
                       .head_stride = 53 * 140,
                       .q_stride = 140};  // longer than a row
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
  problem.args.bias.batch_stride = 0;  // as UMT5: the same for all of the batch
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
}

TEST_P(AttentionBiasTest, InATokenOrder) {
  constexpr int64_t kTokens = 75;
  Problem problem(
      {.lanes = {1, 2}, .grid = {.q_tokens = kTokens, .kv_tokens = kTokens, .block_tokens = 16}});
  std::vector<int32_t> order(kTokens);
  for (int32_t p = 0; p < kTokens; ++p) order[static_cast<size_t>(p)] = p * 7 % kTokens;
  const int32_t* const orders[] = {order.data(), nullptr};
  problem.args.q_order = problem.args.kv_order = orders;
  const auto bias = Biases(2 * kTokens * kTokens, 2.0f, 0.1);
  problem.args.bias = {.data = bias.data(), .head_stride = kTokens * kTokens, .q_stride = kTokens};
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
}

TEST_P(AttentionBiasTest, WhollyLeftOut) {
  Problem problem(
      {.grid = {.q_tokens = 40, .kv_tokens = 150, .block_tokens = 16}, .density = 1.0f});
  std::vector<float> bias(40 * 150, 0.0f);
  auto leave_out = [&](int64_t query, Range keys) {
    for (int64_t k = keys.begin; k < keys.end; ++k)
      bias[static_cast<size_t>(query * 150 + k)] = -kInfinity;
  };
  leave_out(5, {0, 150});  // the whole row
  leave_out(6, {0, 149});  // all but the last key
  leave_out(7, {1, 150});  // all but the first
  leave_out(8, {0, 128});  // a whole chunk before anything counts
  problem.args.bias = {.data = bias.data(), .q_stride = 150};
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
  EXPECT_EQ(problem.Lse(0, 5), -kInfinity);
  for (int64_t d = 0; d < 16; ++d) {
    EXPECT_EQ(problem.out.view().Load(0, 5, 0, d), 0.0f);
    EXPECT_EQ(problem.out.view().Load(0, 6, 0, d), problem.v.view().Load(0, 149, 0, d));
    EXPECT_EQ(problem.out.view().Load(0, 7, 0, d), problem.v.view().Load(0, 0, 0, d));
  }
}

TEST_P(AttentionBiasTest, ZeroBiasIsAsClose) {
  Problem problem({.head_dim = 40});
  const std::vector<float> bias(100, 0.0f);
  problem.args.bias = {.data = bias.data()};
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionNumerics);
EQUITILE_TEST_ON_ALL_TARGETS(AttentionBiasTest);

}  // namespace
}  // namespace equitile
