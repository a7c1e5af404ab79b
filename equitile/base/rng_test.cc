#include "equitile/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace equitile {
namespace {

// The known answers that the paper's authors publish with Random123.
TEST(Rng, PhiloxKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, SameNumbersInAnyOrder) {
  Rng forward(7, 3), mixed(7, 3);
  const Rng at(7, 3);
  std::vector<float> sequence;
  for (int i = 0; i < 101; ++i) sequence.push_back(forward.Normal());
  for (int i = 100; i >= 0; --i) {
    EXPECT_EQ(at.NormalAt(static_cast<uint64_t>(i)), sequence[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(mixed.Uniform(), at.UniformAt(0));
  EXPECT_EQ(mixed.Normal(), at.NormalAt(1));
  EXPECT_EQ(mixed.Below(1000), at.BelowAt(2, 1000));
}

TEST(Rng, SeedsStreamsIndicesAndKindsDiffer) {
  EXPECT_NE(Rng(1).BitsAt(0), Rng(2).BitsAt(0));
  EXPECT_NE(Rng(1).BitsAt(0), Rng(uint64_t{1} << 32 | 1).BitsAt(0));
  EXPECT_NE(Rng(1, 0).BitsAt(0), Rng(1, 1).BitsAt(0));
  EXPECT_NE(Rng(1).BitsAt(0), Rng(1).BitsAt(uint64_t{1} << 40));
  EXPECT_NE(static_cast<float>(Rng(1).BitsAt(0) >> 8) * 0x1p-24f, Rng(1).UniformAt(0));
}

// Bounds are six standard errors: a right generator fails once in 10^8.
TEST(Rng, UniformMoments) {
  const Rng rng(11);
  constexpr int kCount = 100'000;
  double sum = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const float u = rng.UniformAt(i);
    ASSERT_TRUE(u >= 0.0f && u < 1.0f);
    sum += u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 6 * std::sqrt(1.0 / 12 / kCount));
}

TEST(Rng, NormalMoments) {
  const Rng rng(12);
  constexpr int kCount = 100'000;
  double sum = 0, squares = 0, neighbours = 0, last = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = rng.NormalAt(i);
    ASSERT_TRUE(std::abs(x) < 6.7);
    sum += x;
    squares += x * x;
    neighbours += x * last;
    last = x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 6 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1.0, 6 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(neighbours / kCount, 0.0, 6 / std::sqrt(kCount));
}

TEST(Rng, BelowIsBelowAndEven) {
  const Rng rng(13);
  constexpr int kCount = 70'000, kBound = 7;
  std::vector<int> counts(kBound, 0);
  for (uint64_t i = 0; i < kCount; ++i) ++counts[rng.BelowAt(i, kBound)];
  for (int count : counts) EXPECT_NEAR(count, kCount / kBound, 6 * std::sqrt(kCount / kBound));
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(rng.BelowAt(i, 1), 0u);
  bool high = false;
  for (uint64_t i = 0; i < 100; ++i) high |= rng.BelowAt(i, ~uint64_t{0}) > uint64_t{1} << 63;
  EXPECT_TRUE(high);
}

}  // namespace
}  // namespace equitile
