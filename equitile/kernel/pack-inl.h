// Moving rows of tokens in and out of the layouts of the kernels: conversion to f32, and 4 x 4
// transposes. 128-bit vectors on every target: the work is bound by loads and stores, and one piece
// of code serves all.
#if defined(EQUITILE_KERNEL_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_PACK_INL_H_
#undef EQUITILE_KERNEL_PACK_INL_H_
#else
#define EQUITILE_KERNEL_PACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/tensor/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// n numbers, contiguous in memory, to f32.
template <class T>
HWY_INLINE void ToFloats(const T* HWY_RESTRICT from, size_t n, float* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) to[i] = ToFloat(from[i]);
}

// Only where the processor converts: Highway's own conversion makes 65536 of infinity and NaN.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
HWY_INLINE void ToFloats(const F16* HWY_RESTRICT from, size_t n, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from + i))),
               d, to + i);
  }
  for (; i < n; ++i) to[i] = ToFloat(from[i]);
}
#endif

template <class T>
HWY_INLINE void FromFloats(const float* HWY_RESTRICT from, size_t n, T* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) to[i] = FromFloat<T>(from[i]);
}

#if HWY_TARGET != HWY_SCALAR
using D4 = hn::Full128<float>;
using V4 = hn::Vec<D4>;

// Rows become columns, in registers.
HWY_INLINE void Transpose4x4(V4& a, V4& b, V4& c, V4& e) {
  const D4 d;
  const V4 ab_low = hn::InterleaveLower(d, a, b), ab_high = hn::InterleaveUpper(d, a, b);
  const V4 ce_low = hn::InterleaveLower(d, c, e), ce_high = hn::InterleaveUpper(d, c, e);
  a = hn::ConcatLowerLower(d, ce_low, ab_low);
  b = hn::ConcatUpperUpper(d, ce_low, ab_low);
  c = hn::ConcatLowerLower(d, ce_high, ab_high);
  e = hn::ConcatUpperUpper(d, ce_high, ab_high);
}
#endif

// rows: 16 pointers to [n] -> columns [n][16]; n is a multiple of 4.
HWY_INLINE void RowsToColumns(const float* const* HWY_RESTRICT rows, size_t n,
                              float* HWY_RESTRICT columns) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < n; ++i) {
    for (size_t t = 0; t < 16; ++t) columns[i * 16 + t] = rows[t][i];
  }
#else
  const D4 d;
  for (size_t i = 0; i < n; i += 4) {
    for (size_t t = 0; t < 16; t += 4) {
      V4 a = hn::LoadU(d, rows[t] + i), b = hn::LoadU(d, rows[t + 1] + i);
      V4 c = hn::LoadU(d, rows[t + 2] + i), e = hn::LoadU(d, rows[t + 3] + i);
      Transpose4x4(a, b, c, e);
      hn::Store(a, d, columns + (i + 0) * 16 + t);
      hn::Store(b, d, columns + (i + 1) * 16 + t);
      hn::Store(c, d, columns + (i + 2) * 16 + t);
      hn::Store(e, d, columns + (i + 3) * 16 + t);
    }
  }
#endif
}

// columns [n][16], times factor[16] -> 16 rows of [n]; n is a multiple of 4.
HWY_INLINE void ColumnsToRows(const float* HWY_RESTRICT columns, const float* HWY_RESTRICT factor,
                              size_t n, float* const* HWY_RESTRICT rows) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < n; ++i) {
    for (size_t t = 0; t < 16; ++t) rows[t][i] = columns[i * 16 + t] * factor[t];
  }
#else
  const D4 d;
  for (size_t t = 0; t < 16; t += 4) {
    const V4 f = hn::LoadU(d, factor + t);
    for (size_t i = 0; i < n; i += 4) {
      V4 a = hn::Mul(f, hn::Load(d, columns + (i + 0) * 16 + t));
      V4 b = hn::Mul(f, hn::Load(d, columns + (i + 1) * 16 + t));
      V4 c = hn::Mul(f, hn::Load(d, columns + (i + 2) * 16 + t));
      V4 e = hn::Mul(f, hn::Load(d, columns + (i + 3) * 16 + t));
      Transpose4x4(a, b, c, e);
      hn::StoreU(a, d, rows[t] + i);
      hn::StoreU(b, d, rows[t + 1] + i);
      hn::StoreU(c, d, rows[t + 2] + i);
      hn::StoreU(e, d, rows[t + 3] + i);
    }
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_PACK_INL_H_
