// Products of rounded numbers for the register tile (gemm-inl.h), which sees them as words of 32
// bits: two int16 or four int8. Sums are exact in int32, so every instruction that computes them
// gives the same bits; who rounds sees to it that they stay in range (rounding.h).
#if defined(EQUITILE_KERNEL_INTEGER_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_INTEGER_PRODUCTS_INL_H_
#undef EQUITILE_KERNEL_INTEGER_PRODUCTS_INL_H_
#else
#define EQUITILE_KERNEL_INTEGER_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/kernel/simd/gemm-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

// To nearest, ties to even, of what lies within int32: Highway's own looks after the rest, with
// three more instructions.
template <class V>
HWY_INLINE auto RoundToInt(V v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  using D = hn::DFromV<V>;
  using VInt = hn::Vec<hn::RebindToSigned<D>>;
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(v.raw) == 64) return VInt{_mm512_cvtps_epi32(v.raw)};
#endif
#if HWY_TARGET != HWY_SSE4
  if constexpr (sizeof(v.raw) == 32) return VInt{_mm256_cvtps_epi32(v.raw)};
#endif
  if constexpr (sizeof(v.raw) == 16) return VInt{_mm_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

// Words of two int16: c + a0 b0 + a1 b1.
struct PairMath {
  using T = int32_t;
  using D = DI;
  using V = VI;
  static constexpr size_t kNumbers = 2;  // in a word

  static HWY_INLINE V MulAdd(V a, V b, V c) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    // As assembly: left alone, compilers move the products away from their sums and spill them.
    // The tile of AVX2 then loses a tenth.
    decltype(a.raw) product;
    asm("vpmaddwd %2, %1, %0" : "=v"(product) : "v"(a.raw), "v"(b.raw));
    asm("vpaddd %1, %0, %0" : "+v"(c.raw) : "v"(product));
    return c;
#elif HWY_TARGET == HWY_SSE4
    return hn::Add(c, V{_mm_madd_epi16(a.raw, b.raw)});
#else
    const auto low = [](V v) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
    const auto high = [](V v) { return hn::ShiftRight<16>(v); };
    return hn::Add(c, hn::Add(hn::Mul(low(a), low(b)), hn::Mul(high(a), high(b))));
#endif
  }
};

// The same in one instruction, where the processor has VNNI.
struct VnniPairMath : PairMath {
#if HWY_TARGET == HWY_AVX3
  static HWY_INLINE V MulAdd(V a, V b, V c) {
    asm("vpdpwssd %2, %1, %0" : "+v"(c.raw) : "v"(a.raw), "v"(b.raw));
    return c;
  }
#endif
};

// Four int8 per word as two words of int16, of inputs 0, 2 and of inputs 1, 3: sums do not mind the
// order.
template <class V>
struct PairWords {
  V even, odd;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE PairWords<V> WidenQuads(D d, V quads) {
#if HWY_TARGET == HWY_SCALAR
  const V low = hn::Set(d, 0xFFFF);
  const V first = hn::ShiftRight<24>(hn::ShiftLeft<24>(quads)),
          second = hn::ShiftRight<24>(hn::ShiftLeft<16>(quads)),
          third = hn::ShiftRight<24>(hn::ShiftLeft<8>(quads)), fourth = hn::ShiftRight<24>(quads);
  return {hn::Or(hn::And(first, low), hn::ShiftLeft<16>(third)),
          hn::Or(hn::And(second, low), hn::ShiftLeft<16>(fourth))};
#else
  const hn::Repartition<int16_t, D> d16;
  const auto halves = hn::BitCast(d16, quads);
  return {hn::BitCast(d, hn::ShiftRight<8>(hn::ShiftLeft<8>(halves))),
          hn::BitCast(d, hn::ShiftRight<8>(halves))};
#endif
}

// Words of four bytes, those of one side without signs: c + a0 b0 + ... + a3 b3. Made for the
// instruction of AVX-512 VNNI; elsewhere it is put together from pairs, for tests.
HWY_INLINE VI AddQuads(VI c, VI no_signs, VI with_signs) {
#if HWY_TARGET == HWY_AVX3
  asm("vpdpbusd %2, %1, %0" : "+v"(c.raw) : "v"(no_signs.raw), "v"(with_signs.raw));
  return c;
#else
  const VI low = hn::Set(DI(), 0xFF00FF);
  const auto pairs = WidenQuads(DI(), with_signs);
  c = PairMath::MulAdd(hn::And(no_signs, low), pairs.even, c);
  return PairMath::MulAdd(hn::And(hn::ShiftRight<8>(no_signs), low), pairs.odd, c);
#endif
}
struct UnsignedRowsMath : PairMath {
  static constexpr size_t kNumbers = 4;
  static HWY_INLINE V MulAdd(V a, V b, V c) { return AddQuads(c, a, b); }
};
struct UnsignedPanelsMath : PairMath {
  static constexpr size_t kNumbers = 4;
  static HWY_INLINE V MulAdd(V a, V b, V c) { return AddQuads(c, b, a); }
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_INTEGER_PRODUCTS_INL_H_
