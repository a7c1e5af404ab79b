// Rounding on vectors, the same bits on every target: products in f32, then to nearest, ties to
// even.
#if defined(EQUITILE_KERNEL_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ROUNDING_INL_H_
#undef EQUITILE_KERNEL_ROUNDING_INL_H_
#else
#define EQUITILE_KERNEL_ROUNDING_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "equitile/kernel/rounding.h"
#include "equitile/kernel/simd/integer_products-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A number's bits without its sign: ordered as magnitudes are, NaN above infinity.
HWY_INLINE VI MagnitudeBits(VF v) {
  const DI d;
  return hn::And(hn::BitCast(d, v), hn::Set(d, 0x7FFFFFFF));
}

// The largest of them among n numbers.
HWY_INLINE uint32_t MostBits(const float* HWY_RESTRICT from, size_t n) {
  const DF d;
  VI most0 = hn::Zero(DI()), most1 = most0;
  size_t i = 0;
  for (; i + 2 * kVecFloats <= n; i += 2 * kVecFloats) {
    most0 = hn::Max(most0, MagnitudeBits(hn::LoadU(d, from + i)));
    most1 = hn::Max(most1, MagnitudeBits(hn::LoadU(d, from + i + kVecFloats)));
  }
  alignas(64) int32_t lanes[kVecFloats];
  hn::Store(hn::Max(most0, most1), DI(), lanes);
  int32_t most = *std::max_element(lanes, lanes + kVecFloats);
  for (; i < n; ++i) most = std::max(most, std::bit_cast<int32_t>(std::fabs(from[i])));
  return static_cast<uint32_t>(most);
}

// nearest(from * inverse). Not finite numbers become anything, where the inverse is not 0.
template <typename To>
HWY_INLINE void RoundNumbers(const float* HWY_RESTRICT from, size_t n, float inverse,
                             To* HWY_RESTRICT to) {
  if (inverse == 0.0f) {  // nothing but zeros, or a NaN, which no product would turn into 0
    std::fill(to, to + n, To{0});
    return;
  }
  const DF d;
  const hn::Rebind<To, DF> d_to;
  const VF factor = hn::Set(d, inverse);
  size_t i = 0;
  for (; i + kVecFloats <= n; i += kVecFloats) {
    const VI rounded = RoundToInt(hn::Mul(hn::LoadU(d, from + i), factor));
    hn::StoreU(hn::DemoteTo(d_to, rounded), d_to, to + i);
  }
  for (; i < n; ++i) to[i] = static_cast<To>(std::nearbyint(from[i] * inverse));
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ROUNDING_INL_H_
