#include "equitile/sparsity/published/sparge_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"

namespace equitile {
namespace {

struct Case {
  int64_t q_blocks, kv_blocks, dim;
  std::vector<float> q_means, k_means, q_similarity, k_similarity;

  SpargeBlocks Blocks() const { return {dim, q_means, k_means, q_similarity, k_similarity}; }
  BlockMask Mask() const {
    return BlockMask(
        {1, 2}, {.q_tokens = q_blocks * 16, .kv_tokens = kv_blocks * 16 - 3, .block_tokens = 16});
  }
};

Case RandomCase(uint64_t seed, int64_t q_blocks, int64_t kv_blocks) {
  const Rng rng(seed);
  Case c{q_blocks, kv_blocks, 8, {}, {}, {}, {}};
  uint64_t at = 0;
  for (int64_t i = 0; i < q_blocks * 8; ++i) c.q_means.push_back(rng.NormalAt(at++));
  for (int64_t i = 0; i < kv_blocks * 8; ++i) c.k_means.push_back(rng.NormalAt(at++));
  for (int64_t i = 0; i < q_blocks; ++i) c.q_similarity.push_back(std::abs(rng.NormalAt(at++)));
  for (int64_t i = 0; i < kv_blocks; ++i) c.k_similarity.push_back(std::abs(rng.NormalAt(at++)));
  return c;
}

// A block is kept if it or its row is unlike itself, or if fewer than k others are better.
bool SlowKeeps(const Case& c, const SpargeOptions& options, int64_t q, int64_t kv) {
  const auto unlike = [&](const std::vector<float>& similarity, int64_t i) {
    return similarity[static_cast<size_t>(i)] <= options.least_similarity;
  };
  if (unlike(c.q_similarity, q) || unlike(c.k_similarity, kv)) return true;
  const auto score = [&](int64_t column) {
    double sum = 0;
    for (int64_t i = 0; i < c.dim; ++i)
      sum += static_cast<double>(c.q_means[static_cast<size_t>(q * c.dim + i)]) *
             c.k_means[static_cast<size_t>(column * c.dim + i)];
    return sum;
  };
  int64_t better = 0;
  for (int64_t other = 0; other < c.kv_blocks; ++other) {
    if (other == kv || unlike(c.k_similarity, other)) continue;
    better += score(other) > score(kv) || (score(other) == score(kv) && other < kv);
  }
  const double k = std::floor(options.top_k * static_cast<double>(c.kv_blocks));
  return static_cast<double>(better) < std::max(1.0, k);
}

TEST(SpargeRule, IsItsDefinition) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Case c = RandomCase(seed, 1 + static_cast<int64_t>(seed % 7),
                              1 + static_cast<int64_t>(seed * 5 % 71));
    for (double top_k : {0.0, 0.1, 0.5, 1.0}) {
      for (double similarity : {-0.1, 0.3, 9.0}) {
        const SpargeOptions options = {top_k, similarity};
        BlockMask mask = c.Mask();
        KeepBySparge(c.Blocks(), options, 1, mask);
        EXPECT_EQ(mask.LaneKept(0), 0);
        for (int64_t q = 0; q < c.q_blocks; ++q) {
          for (int64_t kv = 0; kv < c.kv_blocks; ++kv)
            ASSERT_EQ(mask.Get(1, q, kv), SlowKeeps(c, options, q, kv))
                << seed << " " << top_k << " " << similarity << " " << q << " " << kv;
        }
      }
    }
  }
}

TEST(SpargeRule, EqualScoresGoToTheLowerIndex) {
  Case c = RandomCase(1, 2, 9);
  std::ranges::fill(c.k_means, 1.0f);
  BlockMask mask = c.Mask();
  KeepBySparge(c.Blocks(), {}, 0, mask);
  EXPECT_EQ(mask.KeptInRow(0, 1), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(SpargeRule, RefusesWhatIsNotFinite) {
  for (float bad : {NAN, INFINITY}) {
    Case c = RandomCase(1, 2, 9);
    c.k_means[40] = bad;
    BlockMask mask = c.Mask();
    EXPECT_THROW(KeepBySparge(c.Blocks(), {}, 0, mask), InputError);
  }
}

}  // namespace
}  // namespace equitile
