#include "equitile/sparsity/mass/mass_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

TEST(KeepByMass, WhatIsKeptAlreadyCounts) {
  const auto kept = [](std::vector<uint32_t> masses, const MassRule& rule, const Blocks& before) {
    BlockMask mask({1, 1}, {16, std::ssize(masses) * 16, 16});
    for (int32_t block : before) mask.Set(0, 0, block);
    KeepByMass(masses, rule, 0, 0, mask);
    return mask.KeptInRow(0, 0);
  };
  EXPECT_EQ(kept({1, 5, 2, 2}, {.mass = 0.6}, {0}), (Blocks{0, 1}));
  EXPECT_EQ(kept({1, 5, 2, 2}, {.mass = 0.4}, {2, 3}), (Blocks{2, 3}));
  EXPECT_EQ(kept({1, 5, 2, 2}, {.mass = 0, .min = 0.5}, {0}), (Blocks{0, 1}));
  EXPECT_EQ(kept({1, 5, 2, 2}, {.mass = 0.9, .max = 0.5}, {0, 2, 3}), (Blocks{0, 2, 3}));
  EXPECT_EQ(kept({1, 5, 2, 2}, {.mass = 1}, {3}), (Blocks{0, 1, 2, 3}));
}

// Taken one by one until nothing is missing, with many ties.
TEST(KeepByMass, IsItsDefinition) {
  const Rng rng(5);
  uint64_t draw = 0;
  const auto below = [&](uint32_t n) {
    return static_cast<uint32_t>(1000 * std::abs(rng.NormalAt(draw++))) % n;
  };
  for (int test = 0; test < 300; ++test) {
    std::vector<uint32_t> masses(1 + below(150));
    const uint32_t values = 1 + below(9);
    for (uint32_t& mass : masses) mass = below(values);
    const MassRule rule = {
        .mass = below(100) / 100.0, .min = below(30) / 100.0, .max = (30 + below(71)) / 100.0};
    const auto blocks = static_cast<double>(masses.size());
    const double total = std::accumulate(masses.begin(), masses.end(), 0.0);
    Blocks order(masses.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return masses[static_cast<size_t>(a)] > masses[static_cast<size_t>(b)];
    });
    Blocks expected;
    double held = 0;
    for (int32_t block : order) {
      const auto count = static_cast<double>(expected.size());
      if (count >= std::ceil(rule.max * blocks - 1e-6)) break;
      if (count >= std::ceil(rule.min * blocks - 1e-6) && held >= std::ceil(rule.mass * total))
        break;
      expected.push_back(block);
      held += masses[static_cast<size_t>(block)];
    }
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(Kept(masses, rule), expected) << test;
  }
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
