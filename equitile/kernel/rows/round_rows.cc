#include "equitile/kernel/rows/round_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/rows/round_rows.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/pack-inl.h"
#include "equitile/kernel/simd/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// One row [n] in f32: where it lies, or gathered into `scratch`.
const float* FloatRow(const ConstView& x, int64_t token, float* scratch) {
  const void* from = x.Address(token, 0);
  if (x.dtype() == DType::kF32 && x.Stride(1) == 1) return static_cast<const float*>(from);
  Gather(from, x.dtype(), x.Stride(1), static_cast<size_t>(x.Extent(1)), scratch);
  return scratch;
}

template <typename To>
void RoundRowsAs(const ConstView& x, std::span<const Range> ranges, Compute compute,
                 const RoundedRows& to, float* scratch) {
  const Range all[] = {{0, x.Extent(1)}};
  if (ranges.empty()) ranges = all;
  auto* numbers = static_cast<To*>(to.numbers);
  for (int64_t token = 0; token < x.Extent(0); ++token, numbers += to.pitch) {
    const float* from = FloatRow(x, token, scratch);
    const RoundingScale scale = ScaleFor(MostBits(from, static_cast<size_t>(x.Extent(1))), compute);
    to.scales[token] = scale.scale;
    int64_t end = 0;
    for (const Range& range : ranges) {
      std::fill(numbers + end, numbers + range.begin, To{0});
      RoundNumbers(from, static_cast<size_t>(range.size()), scale.inverse, numbers + range.begin);
      from += range.size();
      end = range.end;
    }
    std::fill(numbers + end, numbers + to.pitch, To{0});
  }
}

void RoundRowsT(const ConstView& x, std::span<const Range> ranges, Compute compute,
                const RoundedRows& to, float* scratch) {
  if (compute == Compute::kInt16) return RoundRowsAs<int16_t>(x, ranges, compute, to, scratch);
  RoundRowsAs<int8_t>(x, ranges, compute, to, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(RoundRowsT);
}  // namespace

void RoundRows(const ConstView& x, std::span<const Range> ranges, Compute compute,
               const RoundedRows& to, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RoundRowsT)(x, ranges, compute, to, scratch);
}

}  // namespace equitile
#endif  // HWY_ONCE
