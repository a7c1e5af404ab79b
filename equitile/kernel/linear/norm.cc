#include "equitile/kernel/linear/norm.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/linear/norm.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/activation-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DN = hn::CappedTag<float, kNormStep>;
using VN = hn::Vec<DN>;
inline constexpr size_t kLanes = hn::MaxLanes(DN());

// Chains of one sum: 16, in vectors of up to 8. A chain over the widest layer (5120) is then 320
// additions long, and what it errs by, about sqrt(320) / 2 units of the last place of a sixteenth
// of the sum, is less than the rounding of the result.
inline constexpr size_t kChains = 16 / kLanes > 4 ? 16 / kLanes : 4;

// Sum of term(x[i]) over the row.
template <class Term>
HWY_INLINE float SumOf(const float* HWY_RESTRICT x, size_t width, const Term& add) {
  const DN d;
  VN sums[kChains];
  for (VN& sum : sums) sum = hn::Zero(d);
  size_t i = 0;
  for (; i + kChains * kLanes <= width; i += kChains * kLanes) {
    for (size_t c = 0; c < kChains; ++c) sums[c] = add(hn::LoadU(d, x + i + c * kLanes), sums[c]);
  }
  for (size_t c = 0; i < width; i += kLanes, ++c) sums[c] = add(hn::LoadU(d, x + i), sums[c]);
  for (size_t n = kChains; n > 1; n /= 2) {
    for (size_t c = 0; c < n / 2; ++c) sums[c] = hn::Add(sums[c], sums[c + n / 2]);
  }
  return hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

template <bool kScale, bool kShift>
HWY_INLINE void WriteRow(const LayerNorm& norm, const float* HWY_RESTRICT x, float mean,
                         float inverse, float* HWY_RESTRICT row) {
  const DN d;
  const VN vmean = hn::Set(d, mean), vinverse = hn::Set(d, inverse);
  for (size_t i = 0; i < static_cast<size_t>(norm.width); i += kLanes) {
    VN v = hn::Mul(hn::Sub(hn::LoadU(d, x + i), vmean), vinverse);
    if constexpr (kScale && kShift) {
      v = hn::MulAdd(v, hn::LoadU(d, norm.scale + i), hn::LoadU(d, norm.shift + i));
    } else if constexpr (kScale) {
      v = hn::Mul(v, hn::LoadU(d, norm.scale + i));
    } else if constexpr (kShift) {
      v = hn::Add(v, hn::LoadU(d, norm.shift + i));
    }
    hn::StoreU(v, d, row + i);
  }
}

void LayerNormT(const LayerNorm& norm, int64_t first_token, int64_t count, float* rows) {
  const auto width = static_cast<size_t>(norm.width);
  for (int64_t t = 0; t < count; ++t) {
    const float* x = norm.x + (first_token + t) * norm.width;
    float* row = rows + t * norm.width;
    const float mean =
        SumOf(x, width, [](VN v, VN sum) { return hn::Add(sum, v); }) / static_cast<float>(width);
    const VN vmean = hn::Set(DN(), mean);
    const float squares = SumOf(x, width, [vmean](VN v, VN sum) {
      const VN difference = hn::Sub(v, vmean);
      return hn::MulAdd(difference, difference, sum);
    });
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(width) + norm.eps);
    if (norm.scale != nullptr) {
      norm.shift != nullptr ? WriteRow<true, true>(norm, x, mean, inverse, row)
                            : WriteRow<true, false>(norm, x, mean, inverse, row);
    } else {
      norm.shift != nullptr ? WriteRow<false, true>(norm, x, mean, inverse, row)
                            : WriteRow<false, false>(norm, x, mean, inverse, row);
    }
  }
}

void InverseRmsT(const float* x, int64_t stride, int64_t width, float eps, int64_t count,
                 float* inverse) {
  for (int64_t t = 0; t < count; ++t) {
    const float squares = SumOf(x + t * stride, static_cast<size_t>(width),
                                [](VN v, VN sum) { return hn::MulAdd(v, v, sum); });
    inverse[t] = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
  }
}

template <Activation kActivation>
void ActivateAs(size_t n, float* x) {
  const DN d;
  alignas(64) float last[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t here = HWY_MIN(kLanes, n - i);
    std::copy_n(x + i, here, last);
    VN v = hn::Load(d, last);
    if constexpr (kActivation == Activation::kGeluTanh) v = GeluTanh(d, v);
    if constexpr (kActivation == Activation::kSilu) v = Silu(d, v);
    hn::Store(v, d, last);
    std::copy_n(last, here, x + i);
  }
}

void ActivateT(Activation activation, int64_t n, float* x) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kGeluTanh:
      return ActivateAs<Activation::kGeluTanh>(static_cast<size_t>(n), x);
    case Activation::kSilu:
      return ActivateAs<Activation::kSilu>(static_cast<size_t>(n), x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(LayerNormT);
HWY_EXPORT(InverseRmsT);
HWY_EXPORT(ActivateT);

void CheckWidth(int64_t width) {
  EQ_CHECK(width > 0 && width % kNormStep == 0, "a norm over {} channels: not a multiple of {}",
           width, kNormStep);
}
}  // namespace

void LayerNormRows(const LayerNorm& norm, int64_t first_token, int64_t count, float* rows) {
  CheckWidth(norm.width);
  HWY_DYNAMIC_DISPATCH(LayerNormT)(norm, first_token, count, rows);
}

void InverseRms(const float* x, int64_t stride, int64_t width, float eps, int64_t count,
                float* inverse) {
  CheckWidth(width);
  HWY_DYNAMIC_DISPATCH(InverseRmsT)(x, stride, width, eps, count, inverse);
}

void Activate(Activation activation, int64_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(ActivateT)(activation, n, x);
}

}  // namespace equitile
#endif  // HWY_ONCE
