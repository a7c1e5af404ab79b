#include "equitile/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The value of a 16-bit float by its definition.
double Value(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * kInf : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <typename T>
void CheckAllValues(int exponent_bits, int mantissa_bits) {
  for (uint32_t i = 0; i <= 0xFFFF; ++i) {
    const T half{static_cast<uint16_t>(i)};
    const double expected = Value(half.bits, exponent_bits, mantissa_bits);
    const float actual = ToFloat(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << i;
      ASSERT_TRUE(std::isnan(ToFloat(FromFloat<T>(actual)))) << i;
      continue;
    }
    ASSERT_EQ(actual, expected) << i;
    ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << i;
    ASSERT_EQ(FromFloat<T>(actual).bits, half.bits) << i;
  }
}

TEST(DType, EveryHalfToFloatAndBack) { CheckAllValues<F16>(5, 10); }
TEST(DType, EveryBf16ToFloatAndBack) { CheckAllValues<Bf16>(8, 7); }

// Between every two neighbours: the tie goes to the even one, a hair beside it to the nearer one.
template <typename T>
void CheckAllTies(uint16_t largest_finite) {
  for (uint16_t i = 0; i < largest_finite; ++i) {
    const float low = ToFloat(T{i});
    const float high = ToFloat(T{static_cast<uint16_t>(i + 1)});
    const float tie = low + (high - low) / 2;
    const uint16_t even = i % 2 == 0 ? i : static_cast<uint16_t>(i + 1);
    ASSERT_EQ(FromFloat<T>(tie).bits, even) << i;
    ASSERT_EQ(FromFloat<T>(-tie).bits, even | 0x8000) << i;
    ASSERT_EQ(FromFloat<T>(std::nextafter(tie, 0.0f)).bits, i) << i;
    ASSERT_EQ(FromFloat<T>(std::nextafter(tie, kInf)).bits, i + 1) << i;
  }
}

TEST(DType, HalfRoundsToNearestEven) { CheckAllTies<F16>(0x7BFF); }
TEST(DType, Bf16RoundsToNearestEven) { CheckAllTies<Bf16>(0x7F7F); }

TEST(DType, OverflowAndInfinity) {
  EXPECT_EQ(FromFloat<F16>(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(FromFloat<F16>(65520.0f).bits, 0x7C00);
  EXPECT_EQ(FromFloat<F16>(-1e9f).bits, 0xFC00);
  EXPECT_EQ(FromFloat<F16>(kInf).bits, 0x7C00);
  EXPECT_EQ(FromFloat<Bf16>(kInf).bits, 0x7F80);
  EXPECT_EQ(FromFloat<Bf16>(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(FromFloat<Bf16>(-kInf).bits, 0xFF80);
}

TEST(DType, NanStaysNanWhateverItsPayload) {
  for (uint32_t bits :
       {0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<Bf16>(nan)))) << bits;
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<F16>(nan)))) << bits;
    EXPECT_EQ(FromFloat<Bf16>(nan).bits >> 15, bits >> 31);
    EXPECT_EQ(FromFloat<F16>(nan).bits >> 15, bits >> 31);
  }
}

TEST(DType, TooSmallForAHalfIsSignedZero) {
  EXPECT_EQ(FromFloat<F16>(0x1p-25f).bits, 0);
  EXPECT_EQ(FromFloat<F16>(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(FromFloat<F16>(-0x1p-149f).bits, 0x8000);
}

TEST(DType, NamesAndBytes) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeBytes(DType::kF32), 4);
  EXPECT_EQ(DTypeBytes(DType::kBF16), static_cast<int64_t>(sizeof(Bf16)));
  EXPECT_EQ(DTypeBytes(DType::kF16), static_cast<int64_t>(sizeof(F16)));
  EXPECT_THROW(ParseDType("f64"), InputError);
  EXPECT_THROW(ParseDType(""), InputError);
}

}  // namespace
}  // namespace equitile
