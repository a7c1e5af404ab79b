#include "equitile/kernel/rows/short_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

constexpr int64_t kRows = 9;

// Rows of sizes from tiny to huge, one of zeros, two whose largest rounds up to 2^15.
std::vector<float> Rows(int64_t numbers) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(kRows * numbers));
  for (int64_t r = 0; r < kRows; ++r) {
    const float size = std::ldexp(1.0f, static_cast<int>(25 * (r - 5)));
    for (int64_t i = 0; i < numbers; ++i)
      rows[static_cast<size_t>(r * numbers + i)] = r == 0 ? -0.0f : size * normal(random);
  }
  rows[static_cast<size_t>(1 * numbers)] = 0x1.fffffep-97f;
  rows[static_cast<size_t>(2 * numbers)] = -0x1.fffffep-70f;
  return rows;
}

// Plainly: to the nearest multiple of the power of two that makes the largest 2^14 to 2^15.
float Direct(float x, float most) {
  int exponent = 0;
  std::frexp(most, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 1, -100) - 14);
  return static_cast<float>(std::clamp(std::nearbyint(double{x} / unit), -32767.0, 32767.0) *
                            unit) +
         0.0f;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

class ShortRows : public testing::TargetTest {};

TEST_P(ShortRows, AreNearestOnTheGridOfTheirLargest) {
  for (int64_t numbers : {1, 7, 8, 24, 32, 33, 128}) {
    const std::vector<float> rows = Rows(numbers);
    std::vector<float> rounded = rows;
    RoundToShort(rounded.data(), kRows, numbers, numbers);
    std::vector<float> want = rows;
    for (int64_t r = 0; r < kRows; ++r) {
      const auto row = want.begin() + r * numbers;
      float most = 0;
      for (int64_t i = 0; i < numbers; ++i) most = std::max(most, std::fabs(row[i]));
      for (int64_t i = 0; i < numbers; ++i) row[i] = Direct(row[i], most);
    }
    EXPECT_TRUE(SameBits(rounded, want)) << numbers;
  }
}

// What travels is what stays, and rounding it once more changes nothing.
TEST_P(ShortRows, TravelAsTheyAreRoundedAtHome) {
  for (int64_t numbers : {1, 7, 8, 24, 32, 33, 128}) {
    const std::vector<float> rows = Rows(numbers);
    std::vector<float> home = rows, arrived(rows.size());
    RoundToShort(home.data(), kRows, numbers, numbers);
    std::vector<std::byte> wire(static_cast<size_t>(kRows * ShortRowBytes(numbers)));
    for (const std::vector<float>& sent : {rows, home}) {
      PackShort(sent.data(), kRows, numbers, wire.data());
      UnpackShort(wire.data(), kRows, numbers, arrived.data());
      EXPECT_TRUE(SameBits(arrived, home)) << numbers;
    }
    RoundToShort(arrived.data(), kRows, numbers, numbers);
    EXPECT_TRUE(SameBits(arrived, home)) << numbers;
  }
}

TEST_P(ShortRows, WhatIsNotFiniteSpoilsItsRowAlone) {
  constexpr int64_t kNumbers = 40;
  for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> rows = Rows(kNumbers);
    rows[3 * kNumbers + 39] = bad;
    std::vector<float> home = rows, arrived(rows.size());
    RoundToShort(home.data(), kRows, kNumbers, kNumbers);
    std::vector<std::byte> wire(static_cast<size_t>(kRows * ShortRowBytes(kNumbers)));
    PackShort(rows.data(), kRows, kNumbers, wire.data());
    UnpackShort(wire.data(), kRows, kNumbers, arrived.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(std::isnan(home[i]), i / kNumbers == 3) << i;
      EXPECT_EQ(std::isnan(arrived[i]), i / kNumbers == 3) << i;
    }
  }
}

TEST_P(ShortRows, LeaveAloneWhatLiesBetween) {
  std::vector<float> rows(3 * 16, 1.0f / 3);
  RoundToShort(rows.data(), 3, 8, 16);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i] == 1.0f / 3, i % 16 >= 8) << i;
}

EQUITILE_TEST_ON_ALL_TARGETS(ShortRows);

}  // namespace
}  // namespace equitile
