#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "equitile/kernel/reference/linear_reference.h"
#include "equitile/kernel/target_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/simd/activation_test.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// n is a multiple of 16.
void ActivateAll(Activation activation, const float* x, size_t n, float* y) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, x + i);
    hn::StoreU(activation == Activation::kSilu ? Silu(d, v) : GeluTanh(d, v), d, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(ActivateAll);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<float> Activate(Activation activation, std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 15) / 16 * 16);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(ActivateAll)(activation, x.data(), x.size(), y.data());
  y.resize(n);
  return y;
}

class ActivationTest : public testing::TargetTest {};

// Every 256th float of all of them, both signs.
TEST_P(ActivationTest, WithinTheStatedErrorForAllFloats) {
  for (Activation activation : {Activation::kGeluTanh, Activation::kSilu}) {
    double worst = 0.0;
    float worst_x = 0.0f;
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0x7F800000; bits += 256 * 16000) {
      x.clear();
      for (uint32_t i = 0; i < 16000 && bits + 256 * i < 0x7F800000; ++i) {
        x.push_back(std::bit_cast<float>(bits + 256 * i));
        x.push_back(-x.back());
      }
      const std::vector<float> y = Activate(activation, x);
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = ReferenceActivation(activation, x[i]);
        const double unit = 0x1p-24 * std::fabs(static_cast<double>(x[i])) + 0x1p-149;
        double error = std::fabs(static_cast<double>(y[i]) - exact) / unit;
        if (std::isnan(error)) error = HUGE_VAL;
        if (error > worst) worst = error, worst_x = x[i];
      }
    }
    EXPECT_LE(worst, kActivationError) << "at " << worst_x;
    RecordProperty(activation == Activation::kSilu ? "silu" : "gelu", std::to_string(worst));
  }
}

TEST_P(ActivationTest, Limits) {
  for (Activation activation : {Activation::kGeluTanh, Activation::kSilu}) {
    const std::vector<float> y = Activate(
        activation,
        {0.0f, -0.0f, kInfinity, kLargest, -kLargest, -1000.0f, 100.0f, std::nanf(""), -kInfinity});
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_TRUE(std::signbit(y[1]));
    EXPECT_EQ(y[2], kInfinity);
    EXPECT_EQ(y[3], kLargest);
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_EQ(y[5], 0.0f);
    EXPECT_EQ(y[6], 100.0f);
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_TRUE(std::isnan(y[8]));  // inf * 0, as everywhere else
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(ActivationTest);

}  // namespace
}  // namespace equitile
#endif  // HWY_ONCE
