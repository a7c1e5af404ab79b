#include "equitile/kernel/rows/pooling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

std::vector<float> Random(int64_t n, uint32_t stream, float scale = 1.0f) {
  const Rng rng(5, stream);
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = scale * rng.NormalAt(i);
  return x;
}

class Pooling : public testing::TargetTest {};

// Any order, any parts: the same bits, also beside values of another size.
TEST_P(Pooling, PartsAddUpToTheSameBits) {
  constexpr int64_t kDim = 24, kRows = 256;
  std::vector<float> rows = Random(kDim * kRows, 1);
  for (size_t i = 0; i < rows.size(); i += 7) rows[i] *= 60000.0f / 8;
  for (size_t i = 0; i < rows.size(); i += 11) rows[i] *= 1e-7f;
  std::vector<double> whole(kDim, 0.0), parts(kDim, 0.0), backwards(kDim, 0.0);
  ASSERT_TRUE(AddToPool(rows.data(), kRows, kDim, kDim, whole.data()));
  for (int64_t row = kRows - 1; row >= 0; --row)
    ASSERT_TRUE(AddToPool(rows.data() + row * kDim, 1, kDim, kDim, backwards.data()));
  for (int64_t begin = 0; begin < kRows; begin += 17) {
    std::vector<double> part(kDim, 0.0);
    const int64_t count = std::min<int64_t>(17, kRows - begin);
    ASSERT_TRUE(AddToPool(rows.data() + begin * kDim, count, kDim, kDim, part.data()));
    for (size_t i = 0; i < part.size(); ++i) parts[i] += part[i];
  }
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(whole, backwards);
  for (int64_t i = 0; i < kDim; ++i) {
    double sum = 0;
    for (int64_t row = 0; row < kRows; ++row)
      sum += static_cast<double>(rows[static_cast<size_t>(row * kDim + i)]);
    EXPECT_NEAR(whole[static_cast<size_t>(i)], sum, kRows * 0x1p-29);
  }
}

TEST_P(Pooling, SaysWhatCannotBePooled) {
  for (const float bad : {65537.0f, -1e30f, std::numeric_limits<float>::infinity(), NAN}) {
    for (const size_t at : {size_t{0}, size_t{5}, size_t{23}}) {
      std::vector<float> rows(24, 1.0f);
      rows[at] = bad;
      std::vector<double> sums(8, 0.0);
      EXPECT_FALSE(AddToPool(rows.data(), 3, 8, 8, sums.data())) << bad << " at " << at;
    }
  }
  std::vector<float> rows(24, kPoolLimit);
  std::vector<double> sums(8, 0.0);
  EXPECT_TRUE(AddToPool(rows.data(), 3, 8, 8, sums.data()));
  EXPECT_EQ(sums[7], 3.0 * kPoolLimit);
}

// The formula itself, in double.
std::vector<double> DirectMasses(const StripMeans& means, float scale, int64_t q_block) {
  const Range q_tokens = means.grid.QBlockTokens(q_block);
  std::vector<double> masses(static_cast<size_t>(means.grid.KvBlocks()), 0.0);
  double largest = -1e300;
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t a = q_tokens.begin / 16; a < CeilDiv(q_tokens.end, int64_t{16}); ++a) {
      for (int64_t b = 0; b < CeilDiv(means.grid.kv_tokens, int64_t{16}); ++b) {
        double score = 0;
        for (int64_t i = 0; i < means.head_dim; ++i) {
          score += static_cast<double>(means.q[a * means.head_dim + i]) *
                   static_cast<double>(means.k[b * means.head_dim + i]);
        }
        score *= static_cast<double>(scale);
        if (pass == 0) largest = std::max(largest, score);
        const double n_a = static_cast<double>(std::min<int64_t>(16, q_tokens.end - a * 16));
        const double n_b =
            static_cast<double>(std::min<int64_t>(16, means.grid.kv_tokens - b * 16));
        if (pass == 1) {
          masses[static_cast<size_t>(b * 16 / means.grid.block_tokens)] +=
              n_a * n_b * std::exp(score - largest);
        }
      }
    }
  }
  const double total = std::accumulate(masses.begin(), masses.end(), 0.0);
  for (double& mass : masses) mass *= kWholeMass / total;
  return masses;
}

TEST_P(Pooling, PredictsMassesAsTheFormulaSays) {
  struct Case {
    int64_t q_tokens, kv_tokens, block, head_dim;
    float size;
  };
  for (const Case& c :
       {Case{64, 64, 64, 8, 1}, Case{3328, 3328, 64, 32, 2}, Case{1009, 1009, 32, 24, 4},
        Case{257, 1000, 128, 128, 1}, Case{1, 17, 16, 40, 9}, Case{600, 600, 256, 64, 30}}) {
    SCOPED_TRACE(c.q_tokens);
    const BlockGrid grid{.q_tokens = c.q_tokens, .kv_tokens = c.kv_tokens, .block_tokens = c.block};
    const std::vector<float> q = Random(CeilDiv(c.q_tokens, int64_t{16}) * c.head_dim, 2, c.size);
    const std::vector<float> k = Random(CeilDiv(c.kv_tokens, int64_t{16}) * c.head_dim, 3);
    const StripMeans means{.grid = grid, .head_dim = c.head_dim, .q = q.data(), .k = k.data()};
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    const MassPredictor predictor(means, scale);
    std::vector<float> scratch(static_cast<size_t>(predictor.ScratchFloats()));
    std::vector<uint32_t> masses(static_cast<size_t>(grid.KvBlocks()));
    for (int64_t block = 0; block < grid.QBlocks(); block += 1 + grid.QBlocks() / 5) {
      predictor.PredictRow(block, scratch.data(), masses.data());
      const std::vector<double> want = DirectMasses(means, scale, block);
      // A score of size s errs by about sqrt(head_dim) u s, which is a relative error of its
      // weight; the exponential by 2 ulp; six sigmas. Rounding to integers adds a half.
      const double largest_score = 40.0 * c.size;
      const double relative =
          6 * 0x1p-24 * (std::sqrt(static_cast<double>(c.head_dim)) * largest_score + 4);
      for (size_t j = 0; j < masses.size(); ++j) {
        EXPECT_NEAR(masses[j], want[j], 0.5 + relative * want[j]) << block << " " << j;
      }
    }
  }
}

TEST_P(Pooling, EqualKeysShareByTheirTokens) {
  const BlockGrid grid{.q_tokens = 100, .kv_tokens = 100, .block_tokens = 32};  // 32, 32, 32, 4
  const std::vector<float> q = Random(7 * 16, 4);
  std::vector<float> k(7 * 16, 0.25f);
  const MassPredictor predictor({.grid = grid, .head_dim = 16, .q = q.data(), .k = k.data()}, 0.3f);
  std::vector<float> scratch(static_cast<size_t>(predictor.ScratchFloats()));
  std::vector<uint32_t> masses(4);
  predictor.PredictRow(3, scratch.data(), masses.data());
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(masses[j], kWholeMass * (j < 3 ? 0.32 : 0.04), 8);
}

EQUITILE_TEST_ON_ALL_TARGETS(Pooling);

}  // namespace
}  // namespace equitile
