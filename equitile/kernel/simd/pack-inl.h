// Moving rows of tokens in and out of the layouts of the kernels: conversion to f32, and
// transposes.
#if defined(EQUITILE_KERNEL_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_PACK_INL_H_
#undef EQUITILE_KERNEL_PACK_INL_H_
#else
#define EQUITILE_KERNEL_PACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/kernel/simd/gemm-inl.h"
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

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
HWY_INLINE void FromFloats(const float* HWY_RESTRICT from, size_t n, F16* HWY_RESTRICT to) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(d, from + i)), dh,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < n; ++i) to[i] = FromFloat<F16>(from[i]);
}
#endif

// n elements, `stride` apart, to f32.
template <class T>
HWY_INLINE void GatherFloats(const T* from, int64_t stride, size_t n, float* to) {
  if (stride == 1) return ToFloats(from, n, to);
  for (size_t i = 0; i < n; ++i) to[i] = ToFloat(from[static_cast<int64_t>(i) * stride]);
}

template <class T>
HWY_INLINE void ScatterFloats(const float* from, size_t n, int64_t stride, T* to) {
  if (stride == 1) return FromFloats(from, n, to);
  for (size_t i = 0; i < n; ++i) to[static_cast<int64_t>(i) * stride] = FromFloat<T>(from[i]);
}

HWY_INLINE void Gather(const void* from, DType dtype, int64_t stride, size_t n, float* to) {
  switch (dtype) {
    case DType::kF32:
      return GatherFloats(static_cast<const float*>(from), stride, n, to);
    case DType::kBF16:
      return GatherFloats(static_cast<const Bf16*>(from), stride, n, to);
    case DType::kF16:
      return GatherFloats(static_cast<const F16*>(from), stride, n, to);
  }
}

HWY_INLINE void Scatter(const float* from, size_t n, DType dtype, int64_t stride, void* to) {
  switch (dtype) {
    case DType::kF32:
      return ScatterFloats(from, n, stride, static_cast<float*>(to));
    case DType::kBF16:
      return ScatterFloats(from, n, stride, static_cast<Bf16*>(to));
    case DType::kF16:
      return ScatterFloats(from, n, stride, static_cast<F16*>(to));
  }
}

// The vectors of transposes: 8 x 8 where vectors hold 8 floats, else 4 x 4; 16 would not fit a
// head_dim that is a multiple of 8.
using DT = hn::CappedTag<float, 8>;
using VT = hn::Vec<DT>;
inline constexpr size_t kTransposeFloats = hn::MaxLanes(DT());

// [n][n] in registers: rows become columns.
HWY_INLINE void TransposeVectors(VT* HWY_RESTRICT v) {
#if HWY_TARGET != HWY_SCALAR
  const DT d;
  // 4 x 4 in each 128-bit block: interleave pairs of floats, then pairs of pairs.
  const hn::Repartition<double, DT> dd;
  EQ_UNROLL
  for (size_t i = 0; i < kTransposeFloats; i += 4) {
    const VT low01 = hn::InterleaveLower(d, v[i], v[i + 1]),
             high01 = hn::InterleaveUpper(d, v[i], v[i + 1]);
    const VT low23 = hn::InterleaveLower(d, v[i + 2], v[i + 3]),
             high23 = hn::InterleaveUpper(d, v[i + 2], v[i + 3]);
    const auto a = hn::BitCast(dd, low01), b = hn::BitCast(dd, low23), c = hn::BitCast(dd, high01),
               e = hn::BitCast(dd, high23);
    v[i] = hn::BitCast(d, hn::InterleaveLower(dd, a, b));
    v[i + 1] = hn::BitCast(d, hn::InterleaveUpper(dd, a, b));
    v[i + 2] = hn::BitCast(d, hn::InterleaveLower(dd, c, e));
    v[i + 3] = hn::BitCast(d, hn::InterleaveUpper(dd, c, e));
  }
  if constexpr (kTransposeFloats == 8) {  // swap the off-diagonal blocks
    EQ_UNROLL
    for (size_t i = 0; i < 4; ++i) {
      const VT low = v[i], high = v[i + kTransposeFloats - 4];
      v[i] = hn::ConcatLowerLower(d, high, low);
      v[i + kTransposeFloats - 4] = hn::ConcatUpperUpper(d, high, low);
    }
  }
#else
  (void)v;
#endif
}

// rows: 16 pointers to [n] -> columns [n][16]; n is a multiple of 8.
HWY_INLINE void RowsToColumns(const float* const* HWY_RESTRICT rows, size_t n,
                              float* HWY_RESTRICT columns) {
  const DT d;
  constexpr size_t kN = kTransposeFloats;
  for (size_t t = 0; t < 16; t += kN) {
    for (size_t i = 0; i < n; i += kN) {
      VT v[kN];
      EQ_UNROLL
      for (size_t j = 0; j < kN; ++j) v[j] = hn::LoadU(d, rows[t + j] + i);
      TransposeVectors(v);
      EQ_UNROLL
      for (size_t j = 0; j < kN; ++j) hn::StoreU(v[j], d, columns + (i + j) * 16 + t);
    }
  }
}

// columns [n][16], times factor[16] -> 16 rows of [n]; n is a multiple of 8.
HWY_INLINE void ColumnsToRows(const float* HWY_RESTRICT columns, const float* HWY_RESTRICT factor,
                              size_t n, float* const* HWY_RESTRICT rows) {
  const DT d;
  constexpr size_t kN = kTransposeFloats;
  for (size_t t = 0; t < 16; t += kN) {
    const VT f = hn::LoadU(d, factor + t);
    for (size_t i = 0; i < n; i += kN) {
      VT v[kN];
      EQ_UNROLL
      for (size_t j = 0; j < kN; ++j) v[j] = hn::Mul(f, hn::LoadU(d, columns + (i + j) * 16 + t));
      TransposeVectors(v);
      EQ_UNROLL
      for (size_t j = 0; j < kN; ++j) hn::StoreU(v[j], d, rows[t + j] + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_PACK_INL_H_
