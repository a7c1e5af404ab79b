// How numbers become integers, and how many products of them a sum in int32 may hold. Internal to
// the room: the constants that packed weights, rounded rows and the kernels have in common.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "equitile/kernel/compute.h"

namespace equitile {

// Inputs whose products are added in int32; the sums of such parts are then added in f32. Parts
// begin at multiples of this, whichever inputs a call has, so that bits do not depend on them.
constexpr int64_t PartInputs(Compute compute) { return compute == Compute::kInt16 ? 256 : 512; }

// The largest integer: as large as a part of products of two of them allows.
constexpr int32_t RoundingTop(Compute compute) { return compute == Compute::kInt16 ? 2896 : 127; }

constexpr int64_t LargestPart(Compute compute) {
  return int64_t{RoundingTop(compute)} * RoundingTop(compute) * PartInputs(compute);
}
static_assert(LargestPart(Compute::kInt16) <= std::numeric_limits<int32_t>::max());
static_assert(LargestPart(Compute::kInt8) <= std::numeric_limits<int32_t>::max());

// x ~ scale * nearest(x * inverse).
struct RoundingScale {
  float scale = 0, inverse = 0;
};

// most_bits: the largest of the numbers' bits without their signs, which order as the numbers do,
// infinity and NaN above all. Where one of those is among them, all integers are 0 and the scale is
// NaN: what is computed with them is NaN.
inline RoundingScale ScaleFor(uint32_t most_bits, Compute compute) {
  constexpr uint32_t kInfinity = 0x7F800000;
  if (most_bits >= kInfinity) return {.scale = std::numeric_limits<float>::quiet_NaN()};
  if (most_bits == 0) return {};
  // Smaller numbers would have no finite inverse; they are rounded as if beside this one.
  constexpr float kLeast = 0x1p-100f;
  const float most = std::bit_cast<float>(most_bits);
  const float divisor = most < kLeast ? kLeast : most;
  const auto top = static_cast<float>(RoundingTop(compute));
  return {.scale = divisor / top, .inverse = top / divisor};
}

}  // namespace equitile
