#include "equitile/kernel/rows/short_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/rows/short_rows.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace {

struct ShortScale {
  float scale = 0, inverse = 0;  // powers of two; NaN and 0 where a number is not finite
};

// The largest number of the row becomes 2^14 to 2^15. Rows below 2^-100 are rounded as if beside a
// number of that size, so that the inverse is finite.
ShortScale ShortScaleOf(const float* row, size_t numbers) {
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr int kBias = 127, kMantissaBits = 23, kTopExponent = 14, kLeastExponent = -100;
  const uint32_t most = MostBits(row, numbers);
  if (most >= kInfinity) return {.scale = std::numeric_limits<float>::quiet_NaN()};
  const int exponent = std::max(static_cast<int>(most >> kMantissaBits) - kBias, kLeastExponent);
  return {.scale = std::ldexp(1.0f, exponent - kTopExponent),
          .inverse = std::ldexp(1.0f, kTopExponent - exponent)};
}

// Magnitudes that round up to 2^15 are one less: on both sides, else a row would be another one the
// next time that it is rounded.
constexpr int32_t kTop = 32767;

HWY_INLINE VI Shorts(VF v, VF inverse) {
  const DI d;
  return hn::Max(hn::Min(hn::NearestInt(hn::Mul(v, inverse)), hn::Set(d, kTop)), hn::Set(d, -kTop));
}

float ShortOf(float x, float inverse) {
  constexpr auto kMost = static_cast<float>(kTop);
  return std::clamp(std::nearbyint(x * inverse), -kMost, kMost);
}

}  // namespace

void RoundToShortT(float* rows, int64_t count, int64_t numbers, int64_t stride) {
  const DF d;
  const auto n = static_cast<size_t>(numbers);
  for (int64_t r = 0; r < count; ++r) {
    float* HWY_RESTRICT row = rows + r * stride;
    const ShortScale scale = ShortScaleOf(row, n);
    if (scale.inverse == 0.0f) {
      std::fill_n(row, n, scale.scale);
      continue;
    }
    const VF factor = hn::Set(d, scale.inverse), back = hn::Set(d, scale.scale);
    size_t i = 0;
    for (; i + kVecFloats <= n; i += kVecFloats) {
      const VI integer = Shorts(hn::LoadU(d, row + i), factor);
      hn::StoreU(hn::Mul(hn::ConvertTo(d, integer), back), d, row + i);
    }
    // + 0: as from an integer, which has no -0.
    for (; i < n; ++i) row[i] = (ShortOf(row[i], scale.inverse) + 0.0f) * scale.scale;
  }
}

void PackShortT(const float* rows, int64_t count, int64_t numbers, std::byte* to) {
  const DF d;
  const hn::Rebind<int16_t, DF> d16;
  const auto n = static_cast<size_t>(numbers);
  auto* integers = reinterpret_cast<int16_t*>(to);
  int16_t* scales = integers + count * numbers;
  for (int64_t r = 0; r < count; ++r, rows += numbers, integers += numbers) {
    const ShortScale scale = ShortScaleOf(rows, n);
    scales[r] = static_cast<int16_t>(std::bit_cast<uint32_t>(scale.scale) >> 16);
    if (scale.inverse == 0.0f) {
      std::fill_n(integers, n, int16_t{0});
      continue;
    }
    const VF factor = hn::Set(d, scale.inverse);
    size_t i = 0;
    for (; i + kVecFloats <= n; i += kVecFloats)
      hn::StoreU(hn::DemoteTo(d16, Shorts(hn::LoadU(d, rows + i), factor)), d16, integers + i);
    for (; i < n; ++i) integers[i] = static_cast<int16_t>(ShortOf(rows[i], scale.inverse));
  }
}

void UnpackShortT(const std::byte* from, int64_t count, int64_t numbers, float* rows) {
  const DF d;
  const DI d32;
  const hn::Rebind<int16_t, DF> d16;
  const auto n = static_cast<size_t>(numbers);
  const auto* integers = reinterpret_cast<const int16_t*>(from);
  const int16_t* scales = integers + count * numbers;
  for (int64_t r = 0; r < count; ++r, rows += numbers, integers += numbers) {
    const float scale =
        std::bit_cast<float>(static_cast<uint32_t>(static_cast<uint16_t>(scales[r])) << 16);
    const VF factor = hn::Set(d, scale);
    size_t i = 0;
    for (; i + kVecFloats <= n; i += kVecFloats) {
      const VI integer = hn::PromoteTo(d32, hn::LoadU(d16, integers + i));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, integer), factor), d, rows + i);
    }
    for (; i < n; ++i) rows[i] = static_cast<float>(integers[i]) * scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(RoundToShortT);
HWY_EXPORT(PackShortT);
HWY_EXPORT(UnpackShortT);
}  // namespace

void RoundToShort(float* rows, int64_t count, int64_t numbers, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(RoundToShortT)(rows, count, numbers, stride);
}
void PackShort(const float* rows, int64_t count, int64_t numbers, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(PackShortT)(rows, count, numbers, to);
}
void UnpackShort(const std::byte* from, int64_t count, int64_t numbers, float* rows) {
  HWY_DYNAMIC_DISPATCH(UnpackShortT)(from, count, numbers, rows);
}

}  // namespace equitile
#endif  // HWY_ONCE
