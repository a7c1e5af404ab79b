// Tokens rounded to integers with a scale each, and how their strips lie (strips.h, StripLayout).
#if defined(EQUITILE_KERNEL_INT_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_INT_STRIPS_INL_H_
#undef EQUITILE_KERNEL_INT_STRIPS_INL_H_
#else
#define EQUITILE_KERNEL_INT_STRIPS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "equitile/kernel/rows/strips.h"
#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"
#include "equitile/kernel/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

using DTI = hn::RebindToSigned<DT>;
using VTI = hn::Vec<DTI>;

alignas(64) inline constexpr float kZeroRow[kMaxHeadDim] = {};

// rows[t] - center, in scratch [16][head_dim], where the rows may lie already. Rows beyond the last
// token stay what they are: zeros that nobody asks for.
HWY_INLINE void SubtractFromRows(const float* center, size_t head_dim, float* scratch,
                                 const float** rows) {
  const DT d;
  for (size_t t = 0; t < 16; ++t) {
    if (rows[t] == kZeroRow) continue;
    float* to = scratch + t * head_dim;
    for (size_t i = 0; i < head_dim; i += kTransposeFloats)
      hn::StoreU(hn::Sub(hn::LoadU(d, rows[t] + i), hn::LoadU(d, center + i)), d, to + i);
    rows[t] = to;
  }
}

// The largest magnitude in a row; infinity or NaN where any element is. As integers, the bits of
// magnitudes are ordered as the magnitudes are, with infinity and NaN above all.
HWY_INLINE float LargestOf(const float* row, size_t head_dim) {
  const DT d;
  const DTI di;
  VTI top = hn::Zero(di);
  for (size_t i = 0; i < head_dim; i += kTransposeFloats)
    top = hn::Max(top, hn::BitCast(di, hn::Abs(hn::LoadU(d, row + i))));
  return hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, top)));
}

// log2 of x > 0, at most 0.0152 too large and never too small: the mantissa's logarithm as a
// parabola.
HWY_INLINE VF Log2FromAbove(VF x) {
  const DI di;
  const VI bits = hn::BitCast(di, x);
  const VI exponent = hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 127));
  const VF m = hn::Sub(
      hn::BitCast(DF(), hn::Or(hn::And(bits, hn::Set(di, 0x7FFFFF)), hn::Set(di, 0x3F800000))),
      hn::Set(DF(), 1.0f));
  const VF rest = hn::NegMulAdd(m, m, m);  // m (1 - m)
  const VF up = hn::Add(hn::ConvertTo(DF(), exponent), hn::Set(DF(), 0.0098f));
  return hn::Add(hn::MulAdd(rest, hn::Set(DF(), 1.0f / 3), m), up);
}

inline constexpr float kNotFinite = std::numeric_limits<float>::infinity();

// From the largest magnitude of each of 16 tokens, scale[16], as StripLayout says, NaN where it is
// not finite; factor[16]: integers to a unit.
HWY_INLINE void ScalesOf(bool value, float top, const float* HWY_RESTRICT largest,
                         float* HWY_RESTRICT scale, float* HWY_RESTRICT factor) {
  constexpr float kInfinity = kNotFinite;
  const VF nan = hn::Set(DF(), std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < 16; i += kVecFloats) {
    const VF given = hn::Load(DF(), largest + i);
    const auto finite = hn::Lt(given, hn::Set(DF(), kInfinity));
    const VF size = hn::Max(hn::IfThenElseZero(finite, given), hn::Set(DF(), kSmallestToken));
    VF unit = hn::Div(size, hn::Set(DF(), top));
    if (value) unit = Log2FromAbove(unit);
    const VF per_unit = value ? Exp2(DF(), hn::Neg(unit)) : hn::Div(hn::Set(DF(), top), size);
    hn::StoreU(hn::IfThenElse(finite, unit, nan), DF(), scale + i);
    hn::StoreU(per_unit, DF(), factor + i);
  }
}

// Of rows; those that are not finite are replaced by zeros.
HWY_INLINE void TokenScales(bool value, float top, size_t head_dim, const float** rows,
                            float* HWY_RESTRICT scale, float* HWY_RESTRICT factor) {
  HWY_ALIGN float largest[16];
  for (size_t t = 0; t < 16; ++t) {
    largest[t] = LargestOf(rows[t], head_dim);
    if (!(largest[t] < kNotFinite)) rows[t] = kZeroRow;
  }
  ScalesOf(value, top, largest, scale, factor);
}

// n integers of a row [dims, then zeros up to `padded`].
template <class T>
HWY_INLINE void RoundRow(const float* HWY_RESTRICT row, float factor, size_t dims, size_t padded,
                         T* HWY_RESTRICT to) {
  const DT d;
  const hn::Rebind<T, DT> dt;
  const VT f = hn::Set(d, factor);
  for (size_t i = 0; i < dims; i += kTransposeFloats)
    hn::StoreU(hn::DemoteTo(dt, RoundToInt(hn::Mul(f, hn::LoadU(d, row + i)))), dt, to + i);
  std::fill(to + dims, to + padded, T{0});
}

template <class T>
HWY_INLINE void WriteIntQuery(const float* const* rows, const float* factor, size_t dims,
                              size_t padded, float* words) {
  alignas(64) T ints[16 * kMaxHeadDim];
  const float* token[16];
  for (size_t t = 0; t < 16; ++t) {
    RoundRow(rows[t], factor[t], dims, padded, ints + t * padded);
    token[t] = reinterpret_cast<const float*>(ints + t * padded);
  }
  RowsToColumns(token, padded * sizeof(T) / 4, words);  // moves words, whatever they are
}

template <class T>
HWY_INLINE void WriteIntKey(const float* const* rows, const float* factor, size_t dims,
                            size_t padded, T* to) {
  constexpr size_t kGroup = 32 / sizeof(T);  // dims in eight words
  alignas(64) T ints[kMaxHeadDim];
  for (size_t t = 0; t < 16; ++t) {
    RoundRow(rows[t], factor[t], dims, padded, ints);
    if constexpr (sizeof(T) == 1) {  // products of bytes want one side without signs
      for (size_t i = 0; i < padded; ++i) ints[i] = static_cast<T>(ints[i] ^ 0x80);
    }
    for (size_t i = 0; i < padded; i += kGroup)
      std::copy_n(ints + i, kGroup, to + i * 16 + t * kGroup);
  }
}

// Token j of word `row` of a strip of values, kValues tokens to a word: pairs are the bytes 0 and
// 2, 1 and 3 of words of four, so that words of bytes widen without shuffles
// (attention_int_strips-inl.h).
template <size_t kValues>
constexpr size_t TokenInWord(size_t row, size_t j) {
  return kValues == 4 ? 4 * row + j : row / 2 * 4 + row % 2 + 2 * j;
}

template <size_t kValues>
HWY_INLINE void WriteIntValue(const float* const* rows, const float* factor, size_t dims,
                              size_t padded, int32_t* words) {
  const DT d;
  const DTI di;
  const VTI mask = hn::Set(di, kValues == 2 ? 0xFFFF : 0xFF);
  for (size_t row = 0; row < 16 / kValues; ++row, words += 16) {
    for (size_t i = 0; i < dims; i += kTransposeFloats) {
      VTI word = hn::Zero(di);
      EQ_UNROLL
      for (size_t j = kValues; j-- > 0;) {
        const size_t t = TokenInWord<kValues>(row, j);
        const VTI x = RoundToInt(hn::Mul(hn::Set(d, factor[t]), hn::LoadU(d, rows[t] + i)));
        word = hn::Or(hn::ShiftLeft<32 / kValues>(word), hn::And(x, mask));
      }
      hn::StoreU(word, di, words + i / 16 * (256 / kValues) + i % 16);
    }
    for (size_t i = dims; i < padded; i += 8)
      std::fill_n(words + i / 16 * (256 / kValues) + i % 16, 8, 0);
  }
}

// rows: 16 pointers to [head_dim]; those that are not finite become zeros.
HWY_INLINE void WriteIntStrip(StripLayout layout, Compute compute, const float** rows,
                              int64_t head_dim, std::byte* to) {
  const auto dims = static_cast<size_t>(head_dim),
             padded = static_cast<size_t>(PaddedDim(head_dim, compute));
  const bool value = layout == StripLayout::kValue, bytes = compute == Compute::kInt8;
  const int32_t top = value ? ValueTop(compute) : KeyTop(head_dim, compute);
  HWY_ALIGN float factor[16];
  TokenScales(value, static_cast<float>(top), dims, rows,
              reinterpret_cast<float*>(to + StripWordBytes(head_dim, compute)), factor);
  if (layout == StripLayout::kQuery) {
    auto* words = reinterpret_cast<float*>(to);
    bytes ? WriteIntQuery<int8_t>(rows, factor, dims, padded, words)
          : WriteIntQuery<int16_t>(rows, factor, dims, padded, words);
  } else if (value) {
    auto* words = reinterpret_cast<int32_t*>(to);
    bytes ? WriteIntValue<4>(rows, factor, dims, padded, words)
          : WriteIntValue<2>(rows, factor, dims, padded, words);
  } else if (bytes) {
    WriteIntKey(rows, factor, dims, padded, reinterpret_cast<int8_t*>(to));
  } else {
    WriteIntKey(rows, factor, dims, padded, reinterpret_cast<int16_t*>(to));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_INT_STRIPS_INL_H_
