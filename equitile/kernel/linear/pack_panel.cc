#include "equitile/kernel/linear/pack_panel.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/linear/pack_panel.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/pack-inl.h"
#include "equitile/kernel/simd/rounding-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements of a row that are turned at a time.
inline constexpr int64_t kStep = 8;

// Rows k0 .. k1 of the panel, one element at a time.
template <typename From, typename To>
bool PackSlowly(const PanelRows& rows, int64_t k0, int64_t k1, To* to) {
  bool finite = true;
  for (int64_t c = 0; c < rows.count; ++c) {
    const auto* row = static_cast<const From*>(rows.rows[c].data);
    for (int64_t k = k0; k < k1; ++k) {
      const float value = ToFloat(row[k * rows.rows[c].stride]);
      finite &= (std::bit_cast<uint32_t>(value) & 0x7F800000u) != 0x7F800000u;
      to[k * kPanelColumns + c] = FromFloat<To>(value);
    }
  }
  for (int64_t k = k0; k < k1; ++k) {
    for (int64_t c = rows.count; c < kPanelColumns; ++c) to[k * kPanelColumns + c] = To{};
  }
  return finite;
}

#if HWY_TARGET != HWY_SCALAR

// In vectors of 128 bits on every target: memory, not the shuffles, bounds this.
using D16 = hn::Full128<uint16_t>;
using D32 = hn::Full128<uint32_t>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;

// [8][8]: rows become columns, by pairs, pairs of pairs, and halves.
HWY_INLINE void Transpose8x8(V16* HWY_RESTRICT v) {
  const D16 d;
  const D32 d32;
  const hn::Full128<uint64_t> d64;
  V32 a[8];
  EQ_UNROLL
  for (size_t i = 0; i < 4; ++i) {
    a[2 * i] = hn::BitCast(d32, hn::InterleaveLower(d, v[2 * i], v[2 * i + 1]));
    a[2 * i + 1] = hn::BitCast(d32, hn::InterleaveUpper(d, v[2 * i], v[2 * i + 1]));
  }
  // b[4 j + i]: columns 2 i, 2 i + 1 of rows 4 j .. 4 j + 3.
  hn::Vec<decltype(d64)> b[8];
  EQ_UNROLL
  for (size_t j = 0; j < 2; ++j) {
    const V32 *low = a + 4 * j, *high = a + 4 * j + 2;
    b[4 * j] = hn::BitCast(d64, hn::InterleaveLower(d32, low[0], high[0]));
    b[4 * j + 1] = hn::BitCast(d64, hn::InterleaveUpper(d32, low[0], high[0]));
    b[4 * j + 2] = hn::BitCast(d64, hn::InterleaveLower(d32, low[1], high[1]));
    b[4 * j + 3] = hn::BitCast(d64, hn::InterleaveUpper(d32, low[1], high[1]));
  }
  EQ_UNROLL
  for (size_t i = 0; i < 4; ++i) {
    v[2 * i] = hn::BitCast(d, hn::InterleaveLower(d64, b[i], b[4 + i]));
    v[2 * i + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, b[i], b[4 + i]));
  }
}

HWY_INLINE void Transpose4x4(V32* HWY_RESTRICT v) {
  const D32 d;
  const hn::Full128<uint64_t> d64;
  const auto a = hn::BitCast(d64, hn::InterleaveLower(d, v[0], v[1])),
             b = hn::BitCast(d64, hn::InterleaveUpper(d, v[0], v[1])),
             c = hn::BitCast(d64, hn::InterleaveLower(d, v[2], v[3])),
             e = hn::BitCast(d64, hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(d64, a, c));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(d64, a, c));
  v[2] = hn::BitCast(d, hn::InterleaveLower(d64, b, e));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(d64, b, e));
}

// Four f32 as bf16 in the upper halves, rounded as FromFloat<Bf16>.
HWY_INLINE V32 RoundToBf16(V32 bits) {
  const D32 d;
  const V32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const V32 rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd);
  const V32 magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
  const auto nan = hn::Gt(hn::BitCast(hn::Full128<int32_t>(), magnitude),
                          hn::Set(hn::Full128<int32_t>(), 0x7F800000));
  return hn::IfThenElse(hn::RebindMask(d, nan), hn::Or(bits, hn::Set(d, 0x00400000)), rounded);
}

// Eight elements of a row as bf16 bits; `seen` collects the largest exponent bits.
HWY_INLINE V16 LoadAsBf16(const Bf16* from, V16& seen) {
  const D16 d;
  const V16 v = hn::LoadU(d, reinterpret_cast<const uint16_t*>(from));
  seen = hn::Max(seen, hn::And(v, hn::Set(d, 0x7F80)));
  return v;
}
HWY_INLINE V16 LoadAsBf16(const float* from, V16& seen) {
  const D16 d;
  const D32 d32;
  const V32 low = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(from)),
            high = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(from) + 4);
  // The upper halves hold the exponents of what is given, before it is rounded.
  const V16 exponents = hn::ConcatOdd(d, hn::BitCast(d, high), hn::BitCast(d, low));
  seen = hn::Max(seen, hn::And(exponents, hn::Set(d, 0x7F80)));
  return hn::ConcatOdd(d, hn::BitCast(d, RoundToBf16(high)), hn::BitCast(d, RoundToBf16(low)));
}

HWY_INLINE void StoreRow(V16 v, Bf16* to) { hn::StoreU(v, D16(), reinterpret_cast<uint16_t*>(to)); }
HWY_INLINE void StoreRow(V16 v, float* to) {
  const D16 d;
  const D32 d32;
  const V16 zero = hn::Zero(d);
  auto* bits = reinterpret_cast<uint32_t*>(to);
  hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d, zero, v)), d32, bits);
  hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d, zero, v)), d32, bits + 4);
}

HWY_INLINE bool BelowInfinity(V16 seen) {
  alignas(16) uint16_t lanes[8];
  hn::Store(seen, D16(), lanes);
  return *std::max_element(lanes, lanes + 8) < 0x7F80;
}

// Sixteen contiguous rows through bf16: exact where they are bf16 or the panel is.
template <typename From, typename To>
bool PackThroughBf16(const PanelRows& rows, int64_t steps, To* to) {
  V16 seen = hn::Zero(D16());
  for (int64_t k = 0; k < steps * kStep; k += kStep) {
    for (int64_t half = 0; half < 2; ++half) {
      V16 v[8];
      EQ_UNROLL
      for (int64_t c = 0; c < 8; ++c) {
        v[c] = LoadAsBf16(static_cast<const From*>(rows.rows[half * 8 + c].data) + k, seen);
      }
      Transpose8x8(v);
      EQ_UNROLL
      for (int64_t i = 0; i < 8; ++i) StoreRow(v[i], to + (k + i) * kPanelColumns + half * 8);
    }
  }
  return BelowInfinity(seen);
}

bool PackFloats(const PanelRows& rows, int64_t steps, float* to) {
  const D32 d;
  const V32 exponent = hn::Set(d, 0x7F800000);
  V32 seen = hn::Zero(d);
  for (int64_t k = 0; k < steps * kStep; k += 4) {
    for (int64_t quarter = 0; quarter < 4; ++quarter) {
      V32 v[4];
      EQ_UNROLL
      for (int64_t c = 0; c < 4; ++c) {
        const auto* row = static_cast<const uint32_t*>(rows.rows[quarter * 4 + c].data);
        v[c] = hn::LoadU(d, row + k);
        seen = hn::Max(seen, hn::And(v[c], exponent));
      }
      Transpose4x4(v);
      EQ_UNROLL
      for (int64_t i = 0; i < 4; ++i) {
        hn::StoreU(v[i], d,
                   reinterpret_cast<uint32_t*>(to) + (k + i) * kPanelColumns + quarter * 4);
      }
    }
  }
  alignas(16) uint32_t lanes[4];
  hn::Store(seen, d, lanes);
  return *std::max_element(lanes, lanes + 4) < 0x7F800000;
}

bool PackSteps(const PanelRows& rows, int64_t steps, float* to) {
  if (rows.dtype == DType::kF32) return PackFloats(rows, steps, to);
  return PackThroughBf16<Bf16>(rows, steps, to);
}
bool PackSteps(const PanelRows& rows, int64_t steps, Bf16* to) {
  if (rows.dtype == DType::kF32) return PackThroughBf16<float>(rows, steps, to);
  return PackThroughBf16<Bf16>(rows, steps, to);
}

// Rows of whole vectors; the rest of each row goes slowly, and so do f16 and odd strides.
int64_t FastSteps(const PanelRows& rows) {
  if (rows.dtype == DType::kF16 || rows.count < kPanelColumns) return 0;
  for (const PanelRow& row : rows.rows) {
    if (row.stride != 1) return 0;
  }
  return rows.in / kStep;
}

#else

int64_t FastSteps(const PanelRows&) { return 0; }
template <typename To>
bool PackSteps(const PanelRows&, int64_t, To*) {
  return true;
}

#endif

template <typename To>
bool PackAs(const PanelRows& rows, To* to) {
  const int64_t steps = FastSteps(rows);
  const bool finite = PackSteps(rows, steps, to);
  switch (rows.dtype) {
    case DType::kF32:
      return PackSlowly<float>(rows, steps * kStep, rows.in, to) && finite;
    case DType::kBF16:
      return PackSlowly<Bf16>(rows, steps * kStep, rows.in, to) && finite;
    case DType::kF16:
      return PackSlowly<F16>(rows, steps * kStep, rows.in, to) && finite;
  }
  return finite;
}

bool PackPanelT(const PanelRows& rows, DType dtype, void* to) {
  return dtype == DType::kF32 ? PackAs(rows, static_cast<float*>(to))
                              : PackAs(rows, static_cast<Bf16*>(to));
}

// Of a panel's columns, [16] each.
struct ColumnScales {
  ColumnScales(const float* columns, int64_t in, Compute compute, float* scales) {
    for (size_t v = 0; v < kStripFloats; v += kVecFloats) {
      VI most = hn::Zero(DI());
      for (int64_t k = 0; k < in; ++k)
        most = hn::Max(most, MagnitudeBits(hn::LoadU(DF(), columns + k * kPanelColumns + v)));
      alignas(64) int32_t bits[kVecFloats];
      hn::Store(most, DI(), bits);
      for (size_t i = 0; i < kVecFloats; ++i) {
        const RoundingScale scale = ScaleFor(static_cast<uint32_t>(bits[i]), compute);
        scales[v + i] = scale.scale;
        inverse[v + i] = scale.inverse;
      }
    }
  }
  alignas(64) float inverse[kStripFloats];
};

// A word of sixteen columns: the inputs from k on, each in kBits bits, the first in the lowest.
template <int kBits>
HWY_INLINE void PackWord(const float* columns, int64_t k, int64_t in, const ColumnScales& scales,
                         int32_t* word, int32_t* sums) {
  constexpr int64_t kInputs = 32 / kBits;
  const DI d;
  for (size_t v = 0; v < kStripFloats; v += kVecFloats) {
    const VF inverse = hn::Load(DF(), scales.inverse + v);
    // A column that is not finite has no inverse, but its values times 0 are not all 0.
    const auto is_zero = hn::RebindMask(d, hn::Eq(inverse, hn::Zero(DF())));
    VI packed = hn::Zero(d), sum = hn::Zero(d);
    for (int64_t i = HWY_MIN(kInputs, in - k) - 1; i >= 0; --i) {
      const VF value = hn::LoadU(DF(), columns + (k + i) * kPanelColumns + v);
      const VI rounded = hn::IfThenZeroElse(is_zero, hn::NearestInt(hn::Mul(value, inverse)));
      packed = hn::Or(hn::ShiftLeft<kBits>(packed), hn::And(rounded, hn::Set(d, (1 << kBits) - 1)));
      sum = hn::Add(sum, rounded);
    }
    hn::StoreU(packed, d, word + v);
    if (sums != nullptr) hn::StoreU(hn::Add(hn::LoadU(d, sums + v), sum), d, sums + v);
  }
}

template <int kBits>
void PackWords(const float* columns, int64_t in, const ColumnScales& scales,
               const IntegerPanel& to) {
  constexpr int64_t kInputs = 32 / kBits, kPart = PartInputs(Compute::kInt8);
  int32_t* word = to.words;
  for (int64_t k = 0; k < in; k += kInputs, word += kPanelColumns) {
    int32_t* sums = to.part_sums == nullptr ? nullptr : to.part_sums + k / kPart * kPanelColumns;
    if (sums != nullptr && k % kPart == 0) std::fill_n(sums, kPanelColumns, 0);
    PackWord<kBits>(columns, k, in, scales, word, sums);
  }
}

bool PackIntegerPanelT(const PanelRows& rows, Compute compute, float* scratch,
                       const IntegerPanel& to) {
  const bool finite = PackAs(rows, scratch);
  const ColumnScales scales(scratch, rows.in, compute, to.scales);
  if (compute == Compute::kInt16) {
    PackWords<16>(scratch, rows.in, scales, to);
  } else {
    PackWords<8>(scratch, rows.in, scales, to);
  }
  return finite;
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(PackPanelT);
HWY_EXPORT(PackIntegerPanelT);
}  // namespace

bool PackPanel(const PanelRows& rows, DType dtype, void* to) {
  return HWY_DYNAMIC_DISPATCH(PackPanelT)(rows, dtype, to);
}

bool PackIntegerPanel(const PanelRows& rows, Compute compute, float* scratch,
                      const IntegerPanel& to) {
  return HWY_DYNAMIC_DISPATCH(PackIntegerPanelT)(rows, compute, scratch, to);
}

}  // namespace equitile
#endif  // HWY_ONCE
