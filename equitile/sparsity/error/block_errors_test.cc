#include "equitile/sparsity/error/block_errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "equitile/base/rng.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {
namespace {

constexpr int64_t kDim = 16;
const std::vector<int64_t> kAll{0, 1, 2, 3, 4, 5, 6};

// A lane whose last block is ragged.
struct Lane {
  TokenGrid token_grid{.frames = 5, .height = 6, .width = 7};
  TokenOrder order = TokenOrder::kHWF;
  std::vector<int32_t> at = TokenAtPosition(token_grid, order);
  BlockGrid grid{.q_tokens = 210, .kv_tokens = 210, .block_tokens = 32};
  std::vector<float> q, k, v;  // by token
  float scale = 0.25f;

  explicit Lane(float key_scale = 1.0f) {
    const Rng rng(3);
    for (uint64_t i = 0; i < 210 * kDim; ++i) {
      q.push_back(rng.NormalAt(3 * i));
      k.push_back(key_scale * rng.NormalAt(3 * i + 1));
      v.push_back(rng.NormalAt(3 * i + 2));
    }
  }
  LaneKeys Keys() const {
    return {.k = k.data(),
            .v = v.data(),
            .token_at_position = at.data(),
            .grid = grid,
            .head_dim = kDim};
  }
  const float* Query(int64_t position) const {
    return q.data() + at[static_cast<size_t>(position)] * kDim;
  }
  const float* Key(int64_t position) const {
    return k.data() + at[static_cast<size_t>(position)] * kDim;
  }
  const float* Value(int64_t position) const {
    return v.data() + at[static_cast<size_t>(position)] * kDim;
  }
  BlockErrors Begun(int64_t rows, Tail tail, int64_t key_step = 1) const {
    BlockErrors::Lane lane{
        .keys = Keys(), .queries = {}, .scale = scale, .tail = tail, .key_step = key_step};
    for (const int64_t position : SampledPositions(grid, rows))
      lane.queries.push_back(Query(position));
    BlockErrors begun;
    begun.Begin(std::move(lane), rows);
    return begun;
  }
  BlockErrors Judged(int64_t rows, Tail tail, ThreadPool& pool, int64_t key_step = 1) const {
    BlockErrors found = Begun(rows, tail, key_step);
    BlockErrors* const lanes[] = {&found};
    BlockJudge judge(pool);
    judge.Pack(lanes);
    judge.Judge(lanes, kAll);
    return found;
  }
};

double Dot(const float* a, const float* b) {
  double sum = 0;
  for (int64_t i = 0; i < kDim; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

// Sum of exponentials and of exponentials times values, over one block.
struct Sums {
  double weight = 0;
  std::vector<double> value = std::vector<double>(kDim, 0.0);

  void Add(double logit, const float* row, double share = 1) {
    weight += std::exp(logit);
    for (size_t i = 0; i < kDim; ++i) value[i] += share * std::exp(logit) * double{row[i]};
  }
};

Sums OfBlock(const Lane& lane, int64_t position, int64_t block) {
  Sums sums;
  const Range keys = lane.grid.KvBlockTokens(block);
  for (int64_t key = keys.begin; key < keys.end; ++key)
    sums.Add(double{lane.scale} * Dot(lane.Query(position), lane.Key(key)), lane.Value(key));
  return sums;
}

Sums OfMean(const Lane& lane, int64_t position, int64_t block) {
  const Range keys = lane.grid.KvBlockTokens(block);
  std::vector<float> k(kDim, 0), v(kDim, 0);
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    for (size_t i = 0; i < kDim; ++i) {
      k[i] += lane.Key(key)[i] / static_cast<float>(keys.size());
      v[i] += lane.Value(key)[i] / static_cast<float>(keys.size());
    }
  }
  Sums sums;
  sums.Add(double{lane.scale} * Dot(lane.Query(position), k.data()) +
               std::log(static_cast<double>(keys.size())),
           v.data());
  return sums;
}

// The output of a query when one block stands there as its mean, or not at all; -1: none does.
std::vector<double> Output(const Lane& lane, int64_t position, int64_t left_out, Tail tail) {
  std::vector<double> value(kDim, 0);
  double weight = 0;
  for (int64_t block = 0; block < lane.grid.KvBlocks(); ++block) {
    if (block == left_out && tail == Tail::kNone) continue;
    const Sums sums =
        block == left_out ? OfMean(lane, position, block) : OfBlock(lane, position, block);
    weight += sums.weight;
    for (size_t i = 0; i < kDim; ++i) value[i] += sums.value[i];
  }
  for (double& x : value) x /= weight;
  return value;
}

TEST(BlockErrors, SampleIsSpreadOverEveryBlock) {
  const BlockGrid grid{.q_tokens = 66, .kv_tokens = 66, .block_tokens = 32};
  EXPECT_EQ(SampledPositions(grid, 4),
            (std::vector<int64_t>{4, 12, 20, 28, 36, 44, 52, 60, 64, 65}));
  std::vector<int64_t> all(66);
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(SampledPositions(grid, 32), all);
}

// Blocks of few tokens among many hold little, so that what is neglected is small beside the error.
TEST(BlockErrors, AreWhatLeavingABlockOutDoes) {
  const Lane lane;
  ThreadPool pool(2);
  for (const Tail tail : {Tail::kNone, Tail::kMean}) {
    for (const int64_t rows : {1, 4, 32}) {
      const std::vector<int64_t> positions = SampledPositions(lane.grid, rows);
      const BlockErrors found = lane.Judged(rows, tail, pool);
      std::vector<double> exact(found.errors().size(), 0);
      double squares = 0;
      for (const int64_t position : positions) {
        const int64_t q_block = position / 32;
        const Range tokens = lane.grid.QBlockTokens(q_block);
        const double weight =
            static_cast<double>(tokens.size()) / static_cast<double>(std::min(rows, tokens.size()));
        const std::vector<double> whole = Output(lane, position, -1, tail);
        for (const double x : whole) squares += weight * x * x;
        for (int64_t block = 0; block < 7; ++block) {
          const std::vector<double> without = Output(lane, position, block, tail);
          for (size_t i = 0; i < kDim; ++i) {
            exact[static_cast<size_t>(q_block * 7 + block)] +=
                weight * (without[i] - whole[i]) * (without[i] - whole[i]);
          }
        }
      }
      EXPECT_NEAR(found.Squares(), squares, 1e-4 * squares);
      for (size_t i = 0; i < exact.size(); ++i) {
        // Leaving out a share p moves the output by 1 / (1 - p) more than to first order.
        EXPECT_NEAR(std::sqrt(found.errors()[i]), std::sqrt(exact[i]), 0.3 * std::sqrt(exact[i]))
            << "tail " << static_cast<int>(tail) << ", rows " << rows << ", block " << i;
      }
    }
  }
}

TEST(BlockErrors, AnEvenBlockMayBeItsMean) {
  Lane lane;
  for (int64_t position = 64; position < 96; ++position) {  // block 2: one key, one value
    for (int64_t i = 0; i < kDim; ++i) {
      const auto token = static_cast<int64_t>(lane.at[static_cast<size_t>(position)]);
      lane.k[static_cast<size_t>(token * kDim + i)] = 0.5f;
      lane.v[static_cast<size_t>(token * kDim + i)] = 2.0f;
    }
  }
  ThreadPool pool(1);
  const BlockErrors mean = lane.Judged(4, Tail::kMean, pool);
  const BlockErrors none = lane.Judged(4, Tail::kNone, pool);
  for (size_t row = 0; row < 7; ++row) {
    EXPECT_LT(mean.errors()[row * 7 + 2], 1e-8);
    EXPECT_GT(none.errors()[row * 7 + 2], 1e-2);
  }
}

// Each part of the keys is a lane of its own, by which some of a block's queries are judged.
TEST(BlockErrors, PartsOfTheKeysInTurns) {
  for (const int64_t tokens : {210, 209, 193, 1}) {
    Lane lane(2.0f);
    lane.grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = 64};
    lane.at.resize(static_cast<size_t>(tokens));
    std::iota(lane.at.rbegin(), lane.at.rend(), 0);
    const int64_t blocks = lane.grid.QBlocks();
    const std::vector<int64_t> all(kAll.begin(), kAll.begin() + blocks);
    ThreadPool pool(2);
    BlockJudge judge(pool);
    for (const auto& [rows, step] : {std::pair{1, 2}, {3, 2}, {4, 1}, {4, 2}, {4, 4}, {9, 4}}) {
      BlockErrors found = lane.Begun(rows, Tail::kMean, step);
      BlockErrors* const lanes[] = {&found};
      judge.Pack(lanes);
      judge.Judge(lanes, all);
      std::vector<float> expected(static_cast<size_t>(blocks * blocks), 0.0f);
      for (int64_t part = 0; part < step; ++part) {
        std::vector<int32_t> some;
        for (int64_t i = 0; i < CeilDiv(tokens, step); ++i)
          some.push_back(lane.at[static_cast<size_t>(std::min(step * i + part, tokens - 1))]);
        LaneKeys keys = lane.Keys();
        keys.token_at_position = some.data();
        keys.grid = {.q_tokens = tokens, .kv_tokens = std::ssize(some), .block_tokens = 64 / step};
        PackedLane packed;
        packed.Resize(keys.grid, kDim, kDim);
        packed.Pack(keys, {0, blocks});
        for (int64_t block = 0; block < blocks; ++block) {
          const Range positions = lane.grid.QBlockTokens(block);
          const int64_t count = std::min<int64_t>(rows, positions.size());
          for (int64_t i = part; i < count; i += step) {
            const float* query =
                lane.Query(positions.begin + (2 * i + 1) * positions.size() / (2 * count));
            JudgedRow row{
                .weight = static_cast<float>(positions.size()) / static_cast<float>(count),
                .errors = expected.data() + block * blocks};
            BlockPartials partials;
            partials.Compute(packed, {&query, 1}, lane.scale);
            partials.AddErrors(packed, Tail::kMean, {&row, 1});
          }
        }
      }
      EXPECT_EQ(found.errors(), expected) << tokens << " tokens, " << rows << " rows, " << step;
    }
  }
}

TEST(BlockErrors, DoNotDependOnThreadsOrWhatElseIsJudged) {
  const Lane lane(2.0f), other;
  ThreadPool one(1), three(3);
  for (const int64_t rows : {1, 3, 4, 32}) {
    const int64_t step = rows == 4 ? 2 : 1;
    const BlockErrors alone = lane.Judged(rows, Tail::kMean, one, step);
    BlockErrors a = other.Begun(rows, Tail::kMean, step), b = lane.Begun(rows, Tail::kMean, step);
    BlockErrors* const lanes[] = {&a, &b};
    BlockJudge judge(three);
    judge.Pack(lanes);
    const std::vector<int64_t> some{1, 4, 6}, rest{0, 2, 3, 5};
    judge.Judge(lanes, some);
    EXPECT_EQ(b.ErrorsOf(some), alone.ErrorsOf(some));
    EXPECT_EQ(b.ErrorsOf(rest), std::vector<float>(4 * 7, 0.0f));
    EXPECT_LT(b.Squares(), alone.Squares());
    judge.Judge(lanes, rest);
    EXPECT_EQ(b.errors(), alone.errors());
    EXPECT_EQ(b.Squares(), alone.Squares());
    EXPECT_NE(a.errors(), alone.errors());
    EXPECT_GT(b.Bytes() + judge.Bytes(), 2 * 210 * kDim * 4);
  }
}

TEST(BlockErrors, FewestBlocksThatKeepTheRestSmall) {
  const std::vector<float> errors{5, 1, 3, 0, 2};
  EXPECT_EQ(BlocksNeeded(errors, 0), 4);
  EXPECT_EQ(BlocksNeeded(errors, 2.9), 3);
  EXPECT_EQ(BlocksNeeded(errors, 3), 2);
  EXPECT_EQ(BlocksNeeded(errors, 11), 0);
}

}  // namespace
}  // namespace equitile
