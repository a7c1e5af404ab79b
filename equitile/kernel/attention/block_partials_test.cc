#include "equitile/kernel/attention/block_partials.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

class BlockPartialsTest : public testing::TargetTest {};

struct Shape {
  int64_t tokens, block_tokens, head_dim, rows;
  float key_scale = 1.0f;
};

// One lane in an order that is not the home's.
struct Lane {
  explicit Lane(const Shape& given)
      : shape(given),
        grid{.q_tokens = given.tokens,
             .kv_tokens = given.tokens,
             .block_tokens = given.block_tokens},
        at(static_cast<size_t>(given.tokens)) {
    std::iota(at.begin(), at.end(), 0);
    std::rotate(at.begin(), at.begin() + given.tokens / 3, at.end());
    std::reverse(at.begin(), at.begin() + given.tokens / 2);
    const Rng rng(5);
    for (uint64_t i = 0; i < static_cast<uint64_t>(given.tokens * given.head_dim); ++i) {
      k.push_back(given.key_scale * rng.NormalAt(3 * i));
      v.push_back(rng.NormalAt(3 * i + 1));
    }
    for (uint64_t i = 0; i < static_cast<uint64_t>(given.rows * given.head_dim); ++i)
      q.push_back(rng.NormalAt(3 * i + 2));
  }
  LaneKeys Keys() const {
    return {.k = k.data(),
            .v = v.data(),
            .token_at_position = at.data(),
            .grid = grid,
            .head_dim = shape.head_dim};
  }
  std::vector<const float*> Queries() const {
    std::vector<const float*> rows;
    for (int64_t i = 0; i < shape.rows; ++i) rows.push_back(q.data() + i * shape.head_dim);
    return rows;
  }
  float Scale() const { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }

  Shape shape;
  BlockGrid grid;
  std::vector<int32_t> at;
  std::vector<float> q, k, v;
};

PackedLane Packed(const Lane& lane, int64_t value_dims = 0) {
  PackedLane packed;
  packed.Resize(lane.grid, lane.shape.head_dim, value_dims == 0 ? lane.shape.head_dim : value_dims);
  const int64_t blocks = lane.grid.KvBlocks();
  packed.Pack(lane.Keys(), {blocks / 2, blocks});  // in any order
  packed.Pack(lane.Keys(), {0, blocks / 2});
  return packed;
}

// In double: sum of exponentials e^(score - top), outputs and means of each block.
struct Exact {
  Exact(const Lane& lane, int64_t row) {
    const auto dim = static_cast<size_t>(lane.shape.head_dim);
    const auto dot = [&](auto&& key) {
      double sum = 0;
      for (size_t d = 0; d < dim; ++d)
        sum += double{lane.q[static_cast<size_t>(row) * dim + d]} * double{key[d]};
      return double{lane.Scale()} * sum;
    };
    std::vector<double> scores;
    for (const int32_t token : lane.at)
      scores.push_back(dot(lane.k.data() + token * lane.shape.head_dim));
    top = *std::ranges::max_element(scores);
    whole.assign(dim, 0);
    for (int64_t block = 0; block < lane.grid.KvBlocks(); ++block) {
      const Range positions = lane.grid.KvBlockTokens(block);
      double sum = 0;
      std::vector<double> o(dim, 0), mean_k(dim, 0), mean_v(dim, 0);
      for (int64_t p = positions.begin; p < positions.end; ++p) {
        const double weight = std::exp(scores[static_cast<size_t>(p)] - top);
        const size_t token = static_cast<size_t>(lane.at[static_cast<size_t>(p)]) * dim;
        sum += weight;
        for (size_t d = 0; d < dim; ++d) {
          o[d] += weight * double{lane.v[token + d]};
          mean_k[d] += double{lane.k[token + d]} / static_cast<double>(positions.size());
          mean_v[d] += double{lane.v[token + d]} / static_cast<double>(positions.size());
        }
      }
      for (size_t d = 0; d < dim; ++d) whole[d] += o[d];
      for (double& x : o) x /= sum;
      sums.push_back(sum);
      outputs.push_back(o);
      mean_weights.push_back(static_cast<double>(positions.size()) * std::exp(dot(mean_k) - top));
      mean_values.push_back(mean_v);
    }
    all = std::accumulate(sums.begin(), sums.end(), 0.0);
    for (double& x : whole) x /= all;
  }
  double Square() const {
    return std::inner_product(whole.begin(), whole.end(), whole.begin(), 0.0);
  }
  // The formula of the header.
  double Error(size_t block, Tail tail) const {
    const double p = sums[block] / all,
                 mean_p = tail == Tail::kMean ? mean_weights[block] / all : 0;
    double error = 0;
    for (size_t d = 0; d < whole.size(); ++d) {
      const double moved =
          p * (outputs[block][d] - whole[d]) - mean_p * (mean_values[block][d] - whole[d]);
      error += moved * moved;
    }
    return error;
  }

  double top = 0, all = 0;
  std::vector<double> whole, sums, mean_weights;
  std::vector<std::vector<double>> outputs, mean_values;
};

// Ragged last blocks and strips, one block, one token, the smallest and largest blocks and heads;
// rows that fill no strip, one, two; scores far from 0.
const Shape kShapes[] = {{210, 32, 16, 5},   {208, 64, 32, 32},    {37, 64, 8, 1},
                         {1, 16, 24, 17},    {300, 256, 128, 16},  {515, 16, 40, 31},
                         {130, 48, 512, 18}, {333, 64, 32, 20, 8}, {100, 16, 64, 3, 100.0f}};

TEST_P(BlockPartialsTest, AreSoftmaxOfEachBlockAlone) {
  for (const Shape& shape : kShapes) {
    const Lane lane(shape);
    BlockPartials partials;
    partials.Compute(Packed(lane), lane.Queries(), lane.Scale());
    ASSERT_EQ(partials.Blocks(), lane.grid.KvBlocks());
    // Scores are sums of head_dim products, whose rounding grows with them.
    const double tolerance = 2e-6 * double{shape.key_scale} * (8 + std::sqrt(shape.head_dim));
    for (int64_t row = 0; row < shape.rows; ++row) {
      const Exact exact(lane, row);
      for (int64_t block = 0; block < lane.grid.KvBlocks(); ++block) {
        const auto b = static_cast<size_t>(block);
        EXPECT_NEAR(double{partials.Log2Sum(row, block)},
                    (exact.top + std::log(exact.sums[b])) / std::log(2.0), tolerance)
            << shape.tokens << ", row " << row << ", block " << block;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          ASSERT_NEAR(double{partials.Output(row, block, d)},
                      exact.outputs[b][static_cast<size_t>(d)], tolerance)
              << shape.tokens << ", row " << row << ", block " << block << ", dim " << d;
        }
      }
    }
  }
}

TEST_P(BlockPartialsTest, ErrorsAreTheFormula) {
  for (const Shape& shape : kShapes) {
    const Lane lane(shape);
    const PackedLane packed = Packed(lane);
    const auto blocks = static_cast<size_t>(lane.grid.KvBlocks());
    const double tolerance = 2e-6 * double{shape.key_scale} * (8 + std::sqrt(shape.head_dim));
    for (const Tail tail : {Tail::kNone, Tail::kMean}) {
      // The first two rows are of one block of queries, the second weighs twice as much.
      const auto rows = static_cast<size_t>(shape.rows);
      std::vector<float> errors(rows * blocks, 0.25f);
      std::vector<JudgedRow> judged(rows);
      for (size_t r = 0; r < rows; ++r)
        judged[r] = {.weight = r == 1 ? 2.0f : 1.0f,
                     .errors = errors.data() + (r == 1 ? 0 : r) * blocks};
      BlockPartials partials;
      partials.Compute(packed, lane.Queries(), lane.Scale());
      partials.AddErrors(packed, tail, judged);
      std::vector<double> expected(rows * blocks, 0.25);
      for (size_t r = 0; r < rows; ++r) {
        const Exact exact(lane, static_cast<int64_t>(r));
        EXPECT_NEAR(double{judged[r].square}, exact.Square(), tolerance * (1 + exact.Square()));
        for (size_t b = 0; b < blocks; ++b)
          expected[(r == 1 ? 0 : r) * blocks + b] += (r == 1 ? 2 : 1) * exact.Error(b, tail);
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(double{errors[i]}, expected[i], tolerance * (1 + expected[i]))
            << shape.tokens << ", row " << i / blocks << ", block " << i % blocks;
      }
    }
  }
}

// Folding is linear and keeps squares on average: a lane whose values have one channel each in
// every group of dims gives the same errors as one that is not folded.
TEST_P(BlockPartialsTest, FoldedValuesKeepTheirLengths) {
  Lane lane({.tokens = 333, .block_tokens = 64, .head_dim = 64, .rows = 20});
  const auto blocks = static_cast<size_t>(lane.grid.KvBlocks());
  const auto errors_of = [&](int64_t value_dims) {
    std::vector<float> errors(20 * blocks + 20, 0.0f);
    std::vector<JudgedRow> rows(20);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].errors = errors.data() + i * blocks;
    const PackedLane packed = Packed(lane, value_dims);
    EXPECT_EQ(packed.value_dims(), value_dims);
    BlockPartials partials;
    partials.Compute(packed, lane.Queries(), lane.Scale());
    partials.AddErrors(packed, Tail::kMean, rows);
    for (size_t i = 0; i < rows.size(); ++i) errors[20 * blocks + i] = rows[i].square;
    return errors;
  };
  const std::vector<float> whole = errors_of(64), some = errors_of(16);
  const auto sum = [](const std::vector<float>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0);
  };
  EXPECT_NE(whole, some);
  EXPECT_NEAR(sum(some) / sum(whole), 1, std::sqrt(2.0 / 16));
  // Channels 0, 17, 34, 51, ...: none meets another.
  for (size_t i = 0; i < lane.v.size(); ++i)
    if (i % 64 % 16 != i % 64 / 16) lane.v[i] = 0;
  const std::vector<float> apart = errors_of(64), folded = errors_of(16);
  for (size_t i = 0; i < apart.size(); ++i)
    EXPECT_NEAR(folded[i], apart[i], 1e-5f * (1 + apart[i]));
}

// A row's bits are the same alone and among others, at any place, in memory that was used before.
TEST_P(BlockPartialsTest, RowsDependOnNoOtherRow) {
  const Lane lane({.tokens = 333, .block_tokens = 64, .head_dim = 24, .rows = 32});
  const PackedLane packed = Packed(lane);
  const auto blocks = static_cast<size_t>(lane.grid.KvBlocks());
  BlockPartials partials;
  const auto errors_of = [&](std::vector<const float*> queries) {
    std::vector<float> errors(queries.size() * blocks, 0.0f);
    std::vector<JudgedRow> rows(queries.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i].errors = errors.data() + i * blocks;
    partials.Compute(packed, queries, lane.Scale());
    partials.AddErrors(packed, Tail::kMean, rows);
    for (const JudgedRow& row : rows) errors.push_back(row.square);
    return errors;
  };
  std::vector<const float*> queries = lane.Queries();
  const std::vector<float> all = errors_of(queries);
  for (size_t r = 0; r < queries.size(); ++r) {
    const std::vector<float> alone = errors_of({queries[r]});
    EXPECT_TRUE(
        std::equal(alone.begin(), alone.end() - 1, all.begin() + static_cast<int64_t>(r * blocks)))
        << r;
    EXPECT_EQ(alone.back(), all[queries.size() * blocks + r]);
  }
}

// Masks are made of these numbers: targets that give a video the same bits give the same masks.
TEST(BlockPartials, FusedTargetsAgree) {
  const Target own = ActiveTarget();
  for (const Shape& shape : kShapes) {
    const Lane lane(shape);
    const auto rows = static_cast<size_t>(shape.rows);
    const auto blocks = static_cast<size_t>(lane.grid.KvBlocks());
    std::vector<std::vector<float>> found;
    for (const Target target : {Target::kAvx2, Target::kAvx512}) {
      if (!TargetSupported(target)) continue;
      SetTarget(target);
      std::vector<float> errors(rows * blocks, 0.0f);
      std::vector<JudgedRow> judged(rows);
      for (size_t r = 0; r < rows; ++r) judged[r].errors = errors.data() + r * blocks;
      const PackedLane packed = Packed(lane, 8);
      BlockPartials partials;
      partials.Compute(packed, lane.Queries(), lane.Scale());
      partials.AddErrors(packed, Tail::kMean, judged);
      for (const JudgedRow& row : judged) errors.push_back(row.square);
      found.push_back(std::move(errors));
    }
    SetTarget(own);
    if (found.size() < 2) GTEST_SKIP() << "this machine lacks one of the two";
    EXPECT_EQ(found[0], found[1]) << shape.tokens;
  }
}

TEST_P(BlockPartialsTest, WhatIsNotFiniteShows) {
  const float bad[] = {NAN, INFINITY, -INFINITY};
  for (const float value : bad) {
    for (int side = 0; side < 3; ++side) {
      Lane lane({.tokens = 100, .block_tokens = 32, .head_dim = 16, .rows = 8});
      (side == 0 ? lane.q : side == 1 ? lane.k : lane.v)[37] = value;
      std::vector<float> errors(8 * 4, 0.0f);
      std::vector<JudgedRow> rows(8);
      for (size_t i = 0; i < 8; ++i) rows[i].errors = errors.data() + i * 4;
      const PackedLane packed = Packed(lane);
      BlockPartials partials;
      partials.Compute(packed, lane.Queries(), lane.Scale());
      partials.AddErrors(packed, Tail::kMean, rows);
      double squares = 0;
      for (const JudgedRow& row : rows) squares += double{row.square};
      EXPECT_FALSE(std::isfinite(squares)) << value << ", side " << side;
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(BlockPartialsTest);

}  // namespace
}  // namespace equitile
