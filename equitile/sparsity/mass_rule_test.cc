#include "equitile/sparsity/mass_rule.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "equitile/base/rng.h"

namespace equitile {
namespace {

std::vector<int32_t> Kept(std::vector<uint32_t> masses, const MassRule& rule) {
  const auto blocks = static_cast<int64_t>(masses.size());
  BlockMask mask({.batch = 1, .heads = 2},
                 {.q_tokens = 64, .kv_tokens = blocks * 16, .block_tokens = 16});
  KeepByMass(masses, rule, 1, 2, mask);
  EXPECT_EQ(mask.Kept(), mask.RowCount(1, 2));
  return mask.KeptInRow(1, 2);
}

using Blocks = std::vector<int32_t>;

TEST(KeepByMass, KeepsTheFewestThatHoldTheShare) {
  EXPECT_EQ(Kept({1, 5, 2, 2}, {.mass = 0.5}), (Blocks{1}));
  EXPECT_EQ(Kept({1, 5, 2, 2}, {.mass = 0.51}), (Blocks{1, 2}));
  EXPECT_EQ(Kept({1, 5, 2, 2}, {.mass = 0.7}), (Blocks{1, 2}));
  EXPECT_EQ(Kept({1, 5, 2, 2}, {.mass = 0.9}), (Blocks{1, 2, 3}));
  EXPECT_EQ(Kept({1, 5, 2, 2}, {.mass = 0.91}), (Blocks{0, 1, 2, 3}));
}

TEST(KeepByMass, TiesGoToTheLowerIndex) {
  EXPECT_EQ(Kept({3, 3, 3, 3}, {.mass = 0.5}), (Blocks{0, 1}));
  EXPECT_EQ(Kept({1, 3, 3, 1, 3}, {.mass = 0.5}), (Blocks{1, 2}));
}

TEST(KeepByMass, EndsOfTheScale) {
  EXPECT_EQ(Kept({0, 9, 0}, {.mass = 1}), (Blocks{0, 1, 2}));  // all, by definition
  EXPECT_EQ(Kept({4, 9, 0}, {.mass = 0}), Blocks{});
  EXPECT_EQ(Kept({4, 9, 0}, {.mass = 0, .min = 0.3}), (Blocks{1}));
  EXPECT_EQ(Kept({4, 9, 0}, {.mass = 0, .min = 0.34}), (Blocks{0, 1}));
  EXPECT_EQ(Kept({4, 9, 0}, {.mass = 0.99, .min = 0, .max = 0.3}), (Blocks{1}));
  EXPECT_EQ(Kept({0, 0, 0}, {.mass = 0.9}), Blocks{});
  EXPECT_EQ(Kept({0, 0, 0}, {.mass = 0.9, .min = 0.1}), (Blocks{0}));
  EXPECT_EQ(Kept({7}, {.mass = 0.01}), (Blocks{0}));
}

// Nothing smaller holds as much, and nothing that is kept can be left out.
TEST(KeepByMass, IsMinimal) {
  const Rng rng(3);
  for (uint64_t test = 0; test < 200; ++test) {
    std::vector<uint32_t> masses(1 + test % 90);
    for (size_t i = 0; i < masses.size(); ++i)
      masses[i] = static_cast<uint32_t>(100.0f * std::abs(rng.NormalAt(test * 100 + i)));
    const double total = std::accumulate(masses.begin(), masses.end(), 0.0);
    const double share = 0.05 + 0.9 * static_cast<double>(test) / 200;
    double held = 0, lightest = 1e9, heaviest_left = 0;
    const Blocks kept = Kept(masses, {.mass = share});
    for (uint32_t i = 0; i < masses.size(); ++i) {
      const bool is_kept = std::count(kept.begin(), kept.end(), static_cast<int32_t>(i)) > 0;
      if (is_kept) held += masses[i], lightest = std::min<double>(lightest, masses[i]);
      if (!is_kept) heaviest_left = std::max<double>(heaviest_left, masses[i]);
    }
    if (total == 0) continue;
    EXPECT_GE(held, share * total - 1e-6);
    EXPECT_LT(held - lightest, share * total);
    EXPECT_GE(lightest, heaviest_left);
  }
}

}  // namespace
}  // namespace equitile
