// Attention in integers: against a slow computation with the same roundings, bit for bit; against
// double; and what is easy to get wrong: ranges, tops, NaN, scales that differ wildly.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::Layout;
using testing::MatchesReference;
using testing::PackedStrips;
using testing::Problem;
using testing::ProblemOptions;
using testing::ResultBits;

constexpr Compute kIntegers[] = {Compute::kInt16, Compute::kInt8};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.4426950408889634f;

// ---- The same arithmetic, one number at a time. ----

float PowerOfTwo(float shifted) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
}

float Exp2(float x) {
  constexpr float kMagic = 12582912.0f + 127.0f;
  x = x < -127.0f ? -127.0f : x;
  const float shifted = x + kMagic, f = x - (shifted - kMagic);
  float p = 0.0013225697912275791f;
  for (float c : {0.009671816602349281f, 0.05550885200500488f, 0.24022231996059418f,
                  0.693146824836731f, 1.0f})
    p = std::fma(p, f, c);
  return p * PowerOfTwo(shifted);
}

// Of t = z - (base - 127).
float Weight(Compute compute, float t) {
  if (t < 0.0f) return 0.0f;
  const float n = std::floor(t), f = t - n;
  const auto top = static_cast<float>(WeightTop(compute));
  const std::vector<float> c =
      compute == Compute::kInt16
          ? std::vector<float>{0.07802454382181168f, 0.2260671705007553f, 0.6958335041999817f,
                               0.9999251961708069f}
          : std::vector<float>{0.337189644575119f, 0.6576364636421204f, 1.0017246007919312f};
  float p = top * c[0];
  for (size_t i = 1; i < c.size(); ++i) p = std::fma(p, f, top * c[i]);
  return std::ldexp(p, static_cast<int>(n) - 127);
}

// The product of a query and a key, with the key's scale.
float ScaledDot(const AttentionArgs& args, int64_t dot, float scale) {
  constexpr int32_t kFloatSum = 3 << 22;
  if (args.compute == Compute::kInt16 || args.head_dim > 256)
    return static_cast<float>(dot) * scale;
  return std::fma(static_cast<float>(kFloatSum + dot), scale, -float{kFloatSum} * scale);
}

float Log2FromAbove(float x) {
  int exponent;
  const float m = 2.0f * std::frexp(x, &exponent) - 1.0f;
  return std::fma(std::fma(-m, m, m), 1.0f / 3, m) + (static_cast<float>(exponent - 1) + 0.0098f);
}

// A token as it is multiplied.
struct IntToken {
  std::vector<int32_t> x;
  float scale;
};

IntToken Rounded(const ConstView& view, const AttentionArgs& args, int64_t lane, int64_t token,
                 StripLayout layout) {
  const bool value = layout == StripLayout::kValue;
  const auto top =
      static_cast<float>(value ? ValueTop(args.compute) : KeyTop(args.head_dim, args.compute));
  const float* center = layout == StripLayout::kKey ? args.KCenter(lane) : nullptr;
  std::vector<float> row;
  float largest = kSmallestToken;
  for (int64_t i = 0; i < args.head_dim; ++i) {
    row.push_back(view.Load(args.lanes.BatchOf(lane), token, args.lanes.HeadOf(lane), i) -
                  (center != nullptr ? center[i] : 0.0f));
    largest = std::max(largest, std::fabs(row.back()));
  }
  const float scale = value ? Log2FromAbove(largest / top) : largest / top;
  const float factor = value ? Exp2(-scale) : top / largest;
  IntToken result{{}, scale};
  for (float x : row) result.x.push_back(static_cast<int32_t>(std::nearbyint(x * factor)));
  return result;
}

int64_t TokenAt(const int32_t* order, int64_t position) {
  return order != nullptr ? order[position] : position;
}

// z of a query with the keys of a chunk. Every int32 sum is checked for its range.
std::vector<float> SlowScores(const AttentionArgs& args, const IntToken& q,
                              const std::vector<IntToken>& keys,
                              const std::vector<IntToken>& values) {
  const float q_scale = q.scale * (args.scale * kLog2E);
  std::vector<float> z;
  for (size_t j = 0; j < keys.size(); ++j) {
    int64_t dot = 0;
    for (size_t i = 0; i < q.x.size(); ++i) dot += int64_t{q.x[i]} * keys[j].x[i];
    EXPECT_LE(std::abs(dot), INT32_MAX);
    z.push_back(std::fma(ScaledDot(args, dot, keys[j].scale), q_scale, values[j].scale));
  }
  return z;
}

// The weight of z in 16 bits (attention_short_weights-inl.h, kShortStep), of 32640.
int64_t ShortWeight(float z, float top) {
  const auto steps = [](float x) { return std::nearbyint(std::max(-32768.0f, 64.0f * x)); };
  const auto u = static_cast<int64_t>(std::min(32767.0f, steps(top) - steps(z)));
  const float f = 1.0f - static_cast<float>(u % 64) / 64.0f;
  float p = 16320.0f * 0.07802454382181168f;
  for (float c : {0.2260671705007553f, 0.6958335041999817f, 0.9999251961708069f})
    p = std::fma(p, f, 16320.0f * c);
  return static_cast<int64_t>(std::nearbyint(p)) >> std::min<int64_t>(u / 64, 63);
}

// The query at a position of a row over its kept keys: [head_dim].
std::vector<float> SlowQuery(const AttentionArgs& args, int64_t row, int64_t position) {
  const int64_t lane = args.rows->rows[static_cast<size_t>(row)].lane;
  std::vector<IntToken> strip;  // its 16 queries, or fewer: they have z in 16 bits together
  const int64_t begin = position / 16 * 16, end = std::min(begin + 16, args.grid.q_tokens);
  for (int64_t p = begin; p < end; ++p) {
    strip.push_back(
        Rounded(args.q.view, args, lane, TokenAt(args.QOrder(lane), p), StripLayout::kQuery));
  }
  const IntToken& q = strip[static_cast<size_t>(position - begin)];
  std::vector<int64_t> tokens;
  for (int32_t block : args.rows->KvBlocks(row)) {
    const Range range = args.grid.KvBlockTokens(block);
    for (int64_t p = range.begin; p < range.end; ++p)
      tokens.push_back(TokenAt(args.KvOrder(lane), p));
  }
  const auto dims = static_cast<size_t>(args.head_dim);
  std::vector<float> o(dims, 0.0f);
  float maximum = -std::numeric_limits<float>::max(), sum = 0.0f;
  for (size_t first = 0; first < tokens.size(); first += 128) {
    const size_t count = std::min<size_t>(128, tokens.size() - first);
    std::vector<IntToken> keys, values;
    float least = kInfinity, most = -kInfinity;
    for (size_t j = 0; j < count; ++j) {
      keys.push_back(Rounded(args.k.view, args, lane, tokens[first + j], StripLayout::kKey));
      values.push_back(Rounded(args.v.view, args, lane, tokens[first + j], StripLayout::kValue));
      least = std::min(least, values[j].scale);
      most = std::max(most, values[j].scale);
    }
    const std::vector<float> z = SlowScores(args, q, keys, values);
    float top = *std::max_element(z.begin(), z.end());
    bool shorts = args.compute == Compute::kInt8 && most - least <= 3.0f;
    for (size_t i = 0; shorts && i < strip.size(); ++i) {
      const std::vector<float> other = SlowScores(args, strip[i], keys, values);
      const float steps = std::nearbyint(64.0f * *std::max_element(other.begin(), other.end()));
      shorts = steps >= -256.0f * 64 && steps <= 511.0f * 64;
    }
    if (shorts) top = std::nearbyint(64.0f * top) / 64.0f;
    const float now = std::max(maximum, top), factor = Exp2(maximum - now);
    const float share = Exp2(top - now) * (1.0f / static_cast<float>(WeightTop(args.compute)));
    float chain[2] = {};
    std::vector<int64_t> dots(dims, 0);
    for (size_t j = 0, part = 0; shorts && j < count; ++j) {
      const int64_t w = ShortWeight(z[j], top), p = (w + 64) >> 7;
      const auto rest =
          static_cast<size_t>(std::nearbyint(Exp2(least - values[j].scale) * 4095.0f));
      part += static_cast<size_t>(w) * rest;
      if (j % 16 == 15 || j + 1 == count) {
        EXPECT_LE(part, size_t{INT32_MAX});
        chain[0] += static_cast<float>(part);
        part = 0;
      }
      for (size_t i = 0; i < dims; ++i) dots[i] += p * values[j].x[i];
    }
    if (shorts) chain[0] *= Exp2(-least) * (255 / (32640.0f * 4095.0f));
    for (size_t j = 0; !shorts && j < count; ++j) {
      const bool huge = std::fabs(top) > 0x1p20f;  // then top - 127 would round 127 away
      const float t = huge ? (z[j] - top) + 127.0f : z[j] - (top - 127.0f);
      const float w = Weight(args.compute, t);
      chain[j % 2] = std::fma(w, Exp2(-values[j].scale), chain[j % 2]);
      const auto p = static_cast<int64_t>(std::nearbyint(w));
      EXPECT_LE(p, WeightTop(args.compute));
      for (size_t i = 0; i < dims; ++i) dots[i] += p * values[j].x[i];
    }
    for (size_t i = 0; i < dims; ++i) {
      EXPECT_LE(std::abs(dots[i]), INT32_MAX);
      const float add = static_cast<float>(dots[i]) * share;
      o[i] = first == 0 ? add : std::fma(o[i], factor, add);
    }
    sum = std::fma(sum, factor, (chain[0] + chain[1]) * share);
    maximum = now;
  }
  for (float& x : o) x *= 1.0f / sum;
  return o;
}

// Whether the targets' fused multiply-adds are those of the slow computation.
bool Fuses(Target target) { return target == Target::kAvx2 || target == Target::kAvx512; }

class IntAttention : public testing::TargetTest {
 protected:
  // Every `every`th query of every row, however integers are multiplied.
  void ExpectSlowBits(Problem& problem, int64_t every) {
    WithAllProducts([&] {
      problem.Run();
      ExpectSlowOutput(problem, every);
    });
  }
  // And all of it against double.
  void ExpectSlowResult(Problem& problem, int64_t every) {
    WithAllProducts([&] {
      problem.Run();
      ExpectSlowOutput(problem, every);
      EXPECT_TRUE(MatchesReference(problem))
          << ComputeName(problem.args.compute) << ' ' << problem.args.head_dim;
    });
  }

 private:
  void ExpectSlowOutput(const Problem& problem, int64_t every) {
    const AttentionArgs& args = problem.args;
    for (int64_t row = 0; row < args.rows->Count(); ++row) {
      if (args.rows->KvBlocks(row).empty()) continue;
      const AttentionRows::Row r = args.rows->rows[static_cast<size_t>(row)];
      const Range queries = args.grid.QBlockTokens(r.q_block);
      for (int64_t p = queries.begin; p < queries.end; p += every) {
        const int64_t token = TokenAt(args.QOrder(r.lane), p);
        const std::vector<float> want = SlowQuery(args, row, p);
        float largest = 1.0f;
        for (float x : want) largest = std::max(largest, std::fabs(x));
        for (int64_t i = 0; i < args.head_dim; ++i) {
          const float got =
              args.out.Load(args.lanes.BatchOf(r.lane), token, args.lanes.HeadOf(r.lane), i);
          if (Fuses(GetParam())) {
            ASSERT_EQ(std::bit_cast<uint32_t>(got),
                      std::bit_cast<uint32_t>(want[static_cast<size_t>(i)]))
                << ComputeName(args.compute) << ", head_dim " << args.head_dim << ", row " << row
                << ", token " << token << ", dim " << i << ": " << got << ", not "
                << want[static_cast<size_t>(i)];
          } else {
            ASSERT_NEAR(got, want[static_cast<size_t>(i)], 0.02f * largest) << args.head_dim;
          }
        }
      }
    }
  }
};

TEST_P(IntAttention, IsTheSlowComputationBitForBit) {
  for (Compute compute : kIntegers) {
    for (int64_t head_dim : {8, 24, 32, 40, 64, 72, 128, 256, 264, 512}) {
      Problem problem({.grid = {.q_tokens = 37, .kv_tokens = 331, .block_tokens = 16},
                       .head_dim = head_dim,
                       .density = 0.7f,
                       .seed = static_cast<uint64_t>(head_dim)});
      problem.args.compute = compute;
      ExpectSlowResult(problem, 5);
    }
  }
}

// Scores so far apart that weights leave the range of floats, and so large that the shift of a
// weight's exponent would be rounded away.
TEST_P(IntAttention, FarAndHugeScoresAreTheSlowComputation) {
  for (Compute compute : kIntegers) {
    for (float scale : {20.0f, 3e3f, 1e6f, 1e12f}) {
      Problem problem({.grid = {.q_tokens = 32, .kv_tokens = 300, .block_tokens = 32},
                       .head_dim = 32,
                       .density = 1.0f});
      problem.args.compute = compute;
      problem.args.scale = scale;
      ExpectSlowBits(problem, 3);
      for (int64_t t = 0; t < 32; ++t) {
        EXPECT_TRUE(std::isfinite(problem.Lse(0, t)));
        // A mean of values, however few: nothing counted as no weight at all.
        float largest = 0.0f;
        for (int64_t i = 0; i < 32; ++i)
          largest = std::max(largest, std::fabs(problem.args.out.Load(0, t, 0, i)));
        EXPECT_GT(largest, 0.1f) << ComputeName(compute) << ' ' << scale << ' ' << t;
        EXPECT_LT(largest, 6.0f) << ComputeName(compute) << ' ' << scale << ' ' << t;
      }
    }
  }
}

// Keys whose values are smaller than the others' by more than the range of a weight: nothing is
// left of them, in the divisor neither, and on every target alike.
TEST_P(IntAttention, WeightsBelowTheirRangeAreNothing) {
  for (Compute compute : kIntegers) {
    Problem problem({.grid = {.q_tokens = 32, .kv_tokens = 300, .block_tokens = 32},
                     .head_dim = 32,
                     .density = 1.0f});
    for (int64_t t = 0; t < 300; ++t) {
      for (int64_t i = 0; i < 32; ++i)
        problem.v.view().Store(t % 9 ? 0x1p50f * problem.v.view().Load(0, t, 0, i) : 0.0f, 0, t, 0,
                               i);
    }
    problem.args.compute = compute;
    ExpectSlowBits(problem, 3);
  }
}

TEST_P(IntAttention, FollowsOrdersAndCenters) {
  std::vector<int32_t> order(150);
  for (int32_t i = 0; i < 150; ++i) order[static_cast<size_t>(i)] = (i * 77) % 150;
  const std::vector<const int32_t*> orders = {order.data(), nullptr};
  for (Compute compute : kIntegers) {
    Problem problem({.lanes = {.batch = 1, .heads = 2},
                     .grid = {.q_tokens = 150, .kv_tokens = 150, .block_tokens = 32},
                     .head_dim = 40});
    std::vector<float> center(40);
    for (int64_t i = 0; i < 40; ++i) center[static_cast<size_t>(i)] = 0.3f * float(i % 7) - 1.0f;
    const std::vector<const float*> centers = {center.data(), nullptr};
    problem.args.compute = compute;
    problem.args.q_order = problem.args.kv_order = orders;
    problem.args.k_center = centers;
    ExpectSlowResult(problem, 7);
  }
}

TEST_P(IntAttention, StaysWithinTheBoundOfDouble) {
  const ProblemOptions shapes[] = {
      {.lanes = {.batch = 2, .heads = 3}, .head_dim = 64, .density = 0.5f},
      {.grid = {.q_tokens = 70, .kv_tokens = 999, .block_tokens = 64},
       .head_dim = 32,
       .density = 1.0f},
      {.head_dim = 48, .in = DType::kBF16, .out = DType::kBF16, .out_layout = Layout::kDimApart},
      {.head_dim = 16, .in = DType::kF16, .out = DType::kF16, .in_layout = Layout::kPadded},
      {.head_dim = 56, .in_layout = Layout::kDimApart, .out_layout = Layout::kHeadsTokens},
  };
  for (Compute compute : kIntegers) {
    for (const ProblemOptions& shape : shapes) {
      Problem problem(shape);
      problem.args.compute = compute;
      problem.Run();
      EXPECT_TRUE(MatchesReference(problem)) << ComputeName(compute) << ' ' << shape.head_dim;
      EXPECT_TRUE(problem.out.OutsideUntouched());
    }
  }
}

TEST_P(IntAttention, BiasLeavesKeysOut) {
  for (Compute compute : kIntegers) {
    Problem problem(
        {.grid = {.q_tokens = 50, .kv_tokens = 300, .block_tokens = 32}, .density = 1.0f});
    std::vector<float> bias(50 * 300);
    const Rng rng(3, 3);
    for (size_t i = 0; i < bias.size(); ++i)
      bias[i] = rng.UniformAt(i) < 0.3f ? -kInfinity : rng.NormalAt(i);
    for (size_t i = 0; i < 150; ++i) bias[i] = -kInfinity;    // a whole chunk of the first query
    for (size_t i = 300; i < 600; ++i) bias[i] = -kInfinity;  // all of the second
    problem.args.bias = {.data = bias.data(), .q_stride = 300};
    problem.args.compute = compute;
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem)) << ComputeName(compute);
    EXPECT_EQ(problem.Lse(0, 1), -kInfinity);
    EXPECT_EQ(problem.args.out.Load(0, 1, 0, 3), 0.0f);
  }
}

TEST_P(IntAttention, MeansAreNotRounded) {
  const Tail tails[] = {Tail::kMean, Tail::kMean};
  for (Compute compute : kIntegers) {
    for (const bool centred : {false, true}) {
      Problem problem({.lanes = {.batch = 1, .heads = 2},
                       .grid = {.q_tokens = 200, .kv_tokens = 200, .block_tokens = 16},
                       .head_dim = 24,
                       .density = 0.3f});
      const std::vector<float> center(24, 0.75f);
      const std::vector<const float*> centers = {center.data(), center.data()};
      problem.args.tails.lanes = tails;
      problem.args.compute = compute;
      if (centred) problem.args.k_center = centers;
      WithAllProducts([&] {
        problem.Run();
        EXPECT_TRUE(MatchesReference(problem)) << ComputeName(compute) << ' ' << centred;
      });
    }
  }
}

TEST_P(IntAttention, SameBitsForThreadsViewsStripsProducersAndSingleRows) {
  for (Compute compute : kIntegers) {
    Problem problem({.lanes = {.batch = 2, .heads = 2},
                     .grid = {.q_tokens = 130, .kv_tokens = 170, .block_tokens = 32},
                     .head_dim = 40,
                     .density = 0.6f});
    const std::vector<float> center(40, 0.2f);
    const std::vector<const float*> centers(4, center.data());
    problem.args.compute = compute;
    problem.args.k_center = centers;
    const ResultBits want = problem.Bits(1);
    WithAllProducts([&] { EXPECT_EQ(problem.Bits(3), want); });

    AttentionArgs strips = problem.args;
    const PackedStrips q(strips, strips.q, StripLayout::kQuery);
    const PackedStrips k(strips, strips.k, StripLayout::kKey);
    const PackedStrips v(strips, strips.v, StripLayout::kValue);
    strips.q = q.Source();
    strips.v = v.Source();
    EXPECT_EQ(problem.Bits(strips), want);
    strips.k = k.Source();
    EXPECT_EQ(problem.Bits(strips), want);

    auto producer = [&](const ConstView& view) {
      return [&, view](int64_t lane, int64_t first, int64_t count, float* rows) {
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t i = 0; i < 40; ++i)
            rows[t * 40 + i] = view.Load(problem.args.lanes.BatchOf(lane), first + t,
                                         problem.args.lanes.HeadOf(lane), i);
        }
      };
    };
    const auto make_k = producer(problem.k.view()), make_v = producer(problem.v.view());
    AttentionArgs made = problem.args;
    made.k = RowProducer(make_k);
    made.v = RowProducer(make_v);
    EXPECT_EQ(problem.Bits(made), want);

    // The rows of one lane alone, in any grouping.
    AttentionRows some;
    for (int64_t row = 0; row < problem.rows.Count(); row += 3) {
      const AttentionRows::Row r = problem.rows.rows[static_cast<size_t>(row)];
      some.Add(r.lane, r.q_block, problem.rows.KvBlocks(row));
    }
    AttentionArgs few = problem.args;
    few.rows = &some;
    const ResultBits part = problem.Bits(few);
    for (size_t i = 0; i < part.lse.size(); ++i) {
      if (part.lse[i] != std::bit_cast<uint32_t>(Problem::kUntouchedLse)) {
        EXPECT_EQ(part.lse[i], want.lse[i]);
      }
    }
  }
}

// Chunks that end within a register of AMX (4 strips of keys, 2 of them a block; 64 dims), rows
// that keep nothing, means of skipped blocks, tokens that are huge or NaN: the bits of pairs.
TEST_P(IntAttention, Int8ByAmxHasTheSameBits) {
  if (!ProductsSupported(IntegerProducts::kAmx)) GTEST_SKIP() << "this machine lacks avx512amx";
  const Tail tails[] = {Tail::kMean, Tail::kNone};
  // Queries in blocks large enough for it (attention_chunk.cc, AmxPays), and a rest that is not.
  for (int64_t head_dim : {8, 24, 32, 40, 64, 96, 128, 256}) {
    for (int64_t tokens : {1, 15, 17, 97, 331}) {
      for (const float density : {0.4f, 1.0f}) {
        Problem problem({.lanes = {.batch = 1, .heads = 2},
                         .grid = {.q_tokens = 297, .kv_tokens = tokens, .block_tokens = 128},
                         .head_dim = head_dim,
                         .density = density,
                         .seed = static_cast<uint64_t>(head_dim + tokens)});
        problem.args.compute = Compute::kInt8;
        if (tokens > 200) {
          for (int64_t i = 0; i < head_dim; ++i) {
            problem.k.view().Store(1e20f * problem.k.view().Load(0, 40, 0, i), 0, 40, 0, i);
            problem.v.view().Store(1e20f * problem.v.view().Load(0, 140, 0, i), 0, 140, 0, i);
          }
          problem.k.view().Store(kNan, 0, 90, 1, head_dim - 1);
          problem.q.view().Store(kNan, 0, 33, 1, 0);
        }
        if (density < 1.0f) problem.args.tails.lanes = tails;
        SetProducts(IntegerProducts::kPairs);
        const ResultBits want = problem.Bits(1);
        SetProducts(IntegerProducts::kAmx);
        EXPECT_TRUE(problem.Bits(1) == want) << head_dim << ' ' << tokens;
        EXPECT_TRUE(problem.Bits(3) == want) << head_dim << ' ' << tokens << ", three threads";
      }
    }
  }
}

TEST_P(IntAttention, MergesParts) {
  for (Compute compute : kIntegers) {
    Problem problem({.grid = {.q_tokens = 16, .kv_tokens = 256, .block_tokens = 16},
                     .head_dim = 16,
                     .density = 1.0f});
    problem.args.compute = compute;
    problem.Run();
    std::vector<float> out(16 * 16, 0.0f), lse(16, -kInfinity);
    const OutputStrip strip = {.out = out.data(), .lse = lse.data(), .stride = 16};
    for (int32_t part = 0; part < 16; part += 4) {
      AttentionRows rows;
      rows.Add(0, 0, std::vector<int32_t>{part, part + 1, part + 2, part + 3});
      AttentionArgs args = problem.args;
      args.rows = &rows;
      args.out_strips = {.strips = {&strip, 1}, .strips_per_lane = 1, .merge = true};
      ThreadPool pool(1);
      Workspace workspace;
      Attention(args, pool, workspace);
    }
    const float most = compute == Compute::kInt8 ? 0.02f : 1e-3f;
    for (int64_t t = 0; t < 16; ++t) {
      EXPECT_NEAR(lse[static_cast<size_t>(t)], problem.Lse(0, t), most);
      for (int64_t i = 0; i < 16; ++i)
        EXPECT_NEAR(out[static_cast<size_t>(t * 16 + i)], problem.args.out.Load(0, t, 0, i), most);
    }
  }
}

// Everything at its top: sums reach what int32 holds.
TEST_P(IntAttention, SumsFitAtTheTop) {
  for (Compute compute : kIntegers) {
    for (int64_t head_dim : {8, 128, 136, 256, 512}) {
      Problem problem({.grid = {.q_tokens = 16, .kv_tokens = 512, .block_tokens = 256},
                       .head_dim = head_dim,
                       .density = 1.0f});
      for (int64_t i = 0; i < head_dim; ++i) {
        for (int64_t t = 0; t < 16; ++t) problem.q.view().Store(t % 2 ? 1.0f : -1.0f, 0, t, 0, i);
        for (int64_t t = 0; t < 512; ++t) {
          problem.k.view().Store(1.0f, 0, t, 0, i);
          problem.v.view().Store(i % 2 ? 3.0f : -3.0f, 0, t, 0, i);
        }
      }
      problem.args.compute = compute;
      const int32_t top = KeyTop(head_dim, compute);
      EXPECT_LE(int64_t{top} * top * head_dim, INT32_MAX);
      if (compute == Compute::kInt16 && top < 4095) {
        EXPECT_GT(int64_t{top + 1} * (top + 1) * head_dim, INT32_MAX);
      }
      EXPECT_LE(int64_t{128} * WeightTop(compute) * ValueTop(compute), INT32_MAX);
      WithAllProducts([&] {
        problem.Run();
        for (int64_t t = 0; t < 16; ++t) {
          const double score = (t % 2 ? 1.0 : -1.0) * std::sqrt(static_cast<double>(head_dim));
          // All keys alike: half a step of z is not averaged away.
          EXPECT_NEAR(problem.Lse(0, t), score + std::log(512.0),
                      compute == Compute::kInt8 ? 9e-3 : 3e-3);
          for (int64_t i = 0; i < head_dim; ++i)
            EXPECT_NEAR(problem.args.out.Load(0, t, 0, i), i % 2 ? 3.0 : -3.0,
                        compute == Compute::kInt8 ? 0.03 : 1e-3);
        }
      });
    }
  }
}

TEST_P(IntAttention, OneConstantChannelOfKIsSmoothedAway) {
  for (Compute compute : kIntegers) {
    Problem problem({.grid = {.q_tokens = 64, .kv_tokens = 256, .block_tokens = 64},
                     .head_dim = 32,
                     .density = 1.0f});
    for (int64_t t = 0; t < 256; ++t) problem.k.view().Store(50.0f, 0, t, 0, 5);
    std::vector<float> center(32, 0.0f);
    const std::vector<const float*> centers = {center.data()};
    problem.args.compute = compute;
    problem.args.k_center = centers;
    auto error = [&] {
      problem.Run();
      EXPECT_TRUE(MatchesReference(problem));
      double sum = 0.0;
      for (int64_t row = 0; row < problem.rows.Count(); ++row) {
        const AttentionReference want = ReferenceAttentionRow(problem.args, row);
        for (size_t i = 0; i < want.out.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          const double off = problem.args.out.Load(0, row * 64 + at / 32, 0, at % 32) - want.out[i];
          sum += off * off;
        }
      }
      return std::sqrt(sum);
    };
    const double plain = error();
    center[5] = 48.0f;  // need not be exact
    EXPECT_LT(error(), 0.2 * plain) << ComputeName(compute);
  }
}

TEST_P(IntAttention, AHugeTokenAndTinyOnesKeepToThemselves) {
  for (Compute compute : kIntegers) {
    Problem problem({.grid = {.q_tokens = 32, .kv_tokens = 200, .block_tokens = 32},
                     .head_dim = 16,
                     .density = 1.0f});
    for (int64_t i = 0; i < 16; ++i) {
      problem.v.view().Store(1e-9f * problem.v.view().Load(0, 3, 0, i), 0, 3, 0, i);
      problem.v.view().Store(0.0f, 0, 4, 0, i);
      problem.k.view().Store(0.0f, 0, 5, 0, i);
      problem.q.view().Store(0.0f, 0, 6, 0, i);
      problem.k.view().Store(30.0f * problem.k.view().Load(0, 7, 0, i), 0, 7, 0, i);
      problem.v.view().Store(1e4f * problem.v.view().Load(0, 8, 0, i), 0, 8, 0, i);
    }
    problem.args.compute = compute;
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem)) << ComputeName(compute);
    // Keys that all queries want and whose values are near 0: the divisor must count them.
    for (int64_t t = 0; t < 200; t += 50) {
      for (int64_t i = 0; i < 16; ++i) {
        problem.k.view().Store(2.0f, 0, t, 0, i);
        problem.v.view().Store(1e-6f, 0, t, 0, i);
      }
    }
    for (int64_t t = 0; t < 32; ++t) {
      for (int64_t i = 0; i < 16; ++i)
        problem.q.view().Store(1.0f + std::fabs(problem.q.view().Load(0, t, 0, i)), 0, t, 0, i);
    }
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem)) << ComputeName(compute);
  }
}

TEST_P(IntAttention, NanSpoilsWhatItShould) {
  for (Compute compute : kIntegers) {
    for (float bad : {kNan, kInfinity}) {
      Problem problem(
          {.grid = {.q_tokens = 48, .kv_tokens = 64, .block_tokens = 16}, .head_dim = 24});
      problem.rows = {};
      problem.rows.Add(0, 0, std::vector<int32_t>{0, 1});
      problem.rows.Add(0, 1, std::vector<int32_t>{1, 2});
      problem.rows.Add(0, 2, std::vector<int32_t>{3});
      problem.args.compute = compute;
      auto spoilt = [&](int64_t token) {
        int64_t count = 0;
        for (int64_t i = 0; i < 24; ++i)
          count += std::isnan(problem.args.out.Load(0, token, 0, i)) ? 1 : 0;
        EXPECT_TRUE(count == 0 || count == 24) << count;
        return count > 0;
      };
      problem.q.view().Store(bad, 0, 35, 0, 7);
      problem.k.view().Store(bad, 0, 2, 0, 0);    // of block 0
      problem.v.view().Store(bad, 0, 33, 0, 23);  // of block 2
      problem.Run();
      for (int64_t t = 0; t < 48; ++t) EXPECT_EQ(spoilt(t), t < 32 || t == 35) << t;
      problem.k.view().Store(1.0f, 0, 2, 0, 0);
      problem.Run();
      for (int64_t t = 0; t < 48; ++t) EXPECT_EQ(spoilt(t), (t >= 16 && t < 32) || t == 35) << t;
      EXPECT_EQ(std::isnan(problem.Lse(0, 34)), false);
    }
  }
}

TEST_P(IntAttention, EmptyRowsGiveNothing) {
  for (Compute compute : kIntegers) {
    Problem problem({.head_dim = 8});
    problem.rows = {};
    problem.rows.Add(0, 1, {});
    problem.args.compute = compute;
    const std::vector<float> center(8, 1.0f);
    const std::vector<const float*> centers = {center.data()};
    problem.args.k_center = centers;
    problem.Run();
    EXPECT_EQ(problem.args.out.Load(0, 40, 0, 3), 0.0f);
    EXPECT_EQ(problem.Lse(0, 40), -kInfinity);
    EXPECT_TRUE(problem.out.Untouched(0, 5, 0, 0));
  }
}

TEST_P(IntAttention, ObservingRunsInF32) {
  Problem problem({.head_dim = 16});
  std::vector<float> masses(problem.rows.kv_blocks.size());
  const ResultBits f32 = problem.Bits();
  problem.args.masses = masses.data();
  problem.args.compute = Compute::kInt8;
  EXPECT_EQ(problem.Bits(), f32);
}

// Scores below the lowest that f32 kernels used to begin with.
TEST_P(IntAttention, HugeNegativeScoresAreScores) {
  for (Compute compute : {Compute::kF32, Compute::kInt16, Compute::kInt8}) {
    Problem problem({.grid = {.q_tokens = 16, .kv_tokens = 16, .block_tokens = 16},
                     .head_dim = 8,
                     .density = 1.0f});
    for (int64_t t = 0; t < 16; ++t) {
      for (int64_t i = 0; i < 8; ++i) {
        problem.q.view().Store(i == 0 ? 1e19f : 0.0f, 0, t, 0, i);
        problem.k.view().Store(i == 0 ? -2e19f : 0.0f, 0, t, 0, i);
        problem.v.view().Store(2.0f, 0, t, 0, i);
      }
    }
    problem.args.scale = 1.0f;
    problem.args.compute = compute;
    problem.Run();
    EXPECT_NEAR(problem.args.out.Load(0, 3, 0, 3), 2.0f, 0.02f) << ComputeName(compute);
    EXPECT_NEAR(problem.Lse(0, 3), -2e38f, 1e36f) << ComputeName(compute);
  }
}

TEST(IntAttentionArgs, StripsOfAnotherKindAreRefused) {
  Problem problem({.head_dim = 16});
  AttentionArgs args = problem.args;
  const PackedStrips k(args, args.k, StripLayout::kKey);
  args.k = k.Source();
  args.compute = Compute::kInt16;
  ThreadPool pool(1);
  Workspace workspace;
  try {
    Attention(args, pool, workspace);
    ADD_FAILURE() << "f32 strips were read as int16";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("k is strips of f32"), std::string::npos)
        << error.what();
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(IntAttention);

}  // namespace
}  // namespace equitile
