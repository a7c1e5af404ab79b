#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/simd/exp_test.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// n is a multiple of 16.
void Exp2OfAll(const float* x, size_t n, float* y) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(Exp2(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(Exp2OfAll);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Exp2Of(std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 15) / 16 * 16);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(Exp2OfAll)(x.data(), x.size(), y.data());
  y.resize(n);
  return y;
}

class ExpTest : public testing::TargetTest {
 protected:
  // The worst error in units in the last place of the exact result, which must be normal.
  void ExpectWithinTwoUlp(const std::vector<float>& x) {
    const std::vector<float> y = Exp2Of(x);
    double worst = 0.0;
    float worst_x = 0.0f;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp2(static_cast<double>(x[i]));
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      const double error = std::fabs(static_cast<double>(y[i]) - exact) / ulp;
      if (error > worst || std::isnan(error)) worst = error, worst_x = x[i];
    }
    EXPECT_LE(worst, 2.0) << "at " << worst_x;
    RecordProperty("worst_ulp", std::to_string(worst));
  }
};

TEST_P(ExpTest, WithinTwoUlpWhereThePolynomialIsUsed) {
  // All the polynomial sees is a fraction in [-1/2, 1/2]: every 16th float of the two octaves that
  // hold most of it, and what lies beside the ends.
  std::vector<float> x;
  for (float octave : {0.125f, 0.25f}) {
    const uint32_t begin = std::bit_cast<uint32_t>(octave);
    for (uint32_t bits = begin; bits <= begin + (1u << 23); bits += 16) {
      x.push_back(std::bit_cast<float>(bits));
      x.push_back(-x.back());
    }
  }
  for (float tiny = 0.125f; tiny > 1e-30f; tiny *= 0.7f) {
    x.push_back(tiny);
    x.push_back(-tiny);
  }
  ExpectWithinTwoUlp(x);
}

TEST_P(ExpTest, WithinTwoUlpOverTheWholeRange) {
  std::vector<float> x;
  const Rng rng(1);
  for (uint64_t i = 0; i < 300000; ++i) x.push_back(rng.UniformAt(i) * 253.0f - 126.0f);
  // Where the rounding to a whole number flips, and at whole numbers.
  for (float n = -126.0f; n < 127.0f; n += 0.5f) {
    x.push_back(n);
    x.push_back(std::nextafter(n, kInfinity));
    if (n > -126.0f) x.push_back(std::nextafter(n, -kInfinity));
  }
  x.push_back(127.0f);
  ExpectWithinTwoUlp(x);
}

TEST_P(ExpTest, OneAtZero) { EXPECT_EQ(Exp2Of({0.0f, -0.0f}), std::vector<float>({1.0f, 1.0f})); }

TEST_P(ExpTest, ExactAtWholeNumbers) {
  std::vector<float> x, want;
  for (int n = -126; n <= 127; ++n) {
    x.push_back(static_cast<float>(n));
    want.push_back(std::ldexp(1.0f, n));
  }
  EXPECT_EQ(Exp2Of(x), want);
}

TEST_P(ExpTest, ZeroBelowTheRange) {
  const std::vector<float> below = {
      std::nextafter(-126.5f, -kInfinity),  -127.0f,   -127.5f, -150.0f, -1e4f, -1e30f,
      std::numeric_limits<float>::lowest(), -kInfinity};
  for (float y : Exp2Of(below)) {
    EXPECT_EQ(y, 0.0f);
    EXPECT_FALSE(std::signbit(y));
  }
}

// Between the smallest normal result and 0 the result is a denormal: right to its last place.
TEST_P(ExpTest, DenormalResults) {
  std::vector<float> x;
  const float smallest = std::nextafter(-126.5f, 0.0f);
  for (float v = smallest; v < -126.0f; v += 0.001f) x.push_back(v);
  const std::vector<float> y = Exp2Of(x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i], std::exp2(static_cast<double>(x[i])), 2 * 0x1p-149) << "at " << x[i];
  }
}

TEST_P(ExpTest, NanStaysNan) {
  const std::vector<float> nans = {kNan, -kNan, std::bit_cast<float>(0x7F800001u),
                                   std::bit_cast<float>(0xFFFFFFFFu)};
  for (float y : Exp2Of(nans)) EXPECT_TRUE(std::isnan(y));
  // Nor do neighbours in the same vector change.
  const std::vector<float> y = Exp2Of({1.0f, kNan, 2.0f, -kInfinity, 3.0f});
  EXPECT_EQ(y[0], 2.0f);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[2], 4.0f);
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[4], 8.0f);
}

TEST_P(ExpTest, Ascends) {
  std::vector<float> x;
  for (float v = -20.0f; v <= 0.0f; v += 0x1p-13f) x.push_back(v);
  const std::vector<float> y = Exp2Of(x);
  for (size_t i = 1; i < y.size(); ++i) EXPECT_GE(y[i], y[i - 1]) << "at " << x[i];
}

EQUITILE_TEST_ON_ALL_TARGETS(ExpTest);

}  // namespace
}  // namespace equitile
#endif  // HWY_ONCE
