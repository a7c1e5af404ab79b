// The weights of integer attention from scores in f32: 2^(z - base), rounded, as words of pairs or
// quads of keys. Where z fit 16 bits attention_short_weights-inl.h computes them instead.
#if defined(EQUITILE_KERNEL_ATTENTION_INT_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_INT_WEIGHTS_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_INT_WEIGHTS_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_INT_WEIGHTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// Weights are computed from t = z - base + kWeightShift. Adding that much makes t positive wherever
// a weight is more than 0, so that t - floor(t) is exact.
inline constexpr float kWeightShift = 127.0f;

// 2^f for f in [0, 1), times the largest weight and 2^-kPower: as good as the rounding that follows
// (relative error 7.5e-5 and 1.7e-3; half a unit of the largest weight is 1.2e-4 and 2e-3).
template <Compute kCompute, int kPower>
HWY_INLINE VF WeightPolynomial(VF f) {
  constexpr float kTop = WeightTop(kCompute);
  constexpr float kUnit = kPower == 1 ? 0.5f : 0x1p-127f;
  static_assert(kPower == 1 || kPower == 127);
  const auto c = [](float coefficient) { return hn::Set(DF(), kTop * coefficient * kUnit); };
  if constexpr (kCompute == Compute::kInt16) {
    VF p = hn::MulAdd(c(0.07802454382181168f), f, c(0.2260671705007553f));
    p = hn::MulAdd(p, f, c(0.6958335041999817f));
    return hn::MulAdd(p, f, c(0.9999251961708069f));
  } else {
    const VF p = hn::MulAdd(c(0.337189644575119f), f, c(0.6576364636421204f));
    return hn::MulAdd(p, f, c(1.0017246007919312f));
  }
}

// z - low. Of the ports that multiply and those that add, floors, powers of two and conversions
// keep the latter busy on Zen 4: there the difference is a multiply-add by 1, with the same bits.
HWY_INLINE VF Above(VF z, VF low) {
#if HWY_TARGET == HWY_AVX3
  const VF one = hn::Set(DF(), 1.0f);
  asm("vfmsub132ps %2, %1, %0" : "+v"(z.raw) : "v"(low.raw), "v"(one.raw));
  return z;
#else
  return hn::Sub(z, low);
#endif
}

// 2^(t - kWeightShift) times the largest weight; 0 for t < 0, also for -inf; NaN stays NaN. AVX-512
// takes floors and powers of two in one instruction each; the bits are the same.
template <Compute kCompute>
HWY_INLINE VF Weight(VF t) {
#if HWY_TARGET == HWY_AVX3
  const VF p = WeightPolynomial<kCompute, 127>(VF{_mm512_reduce_ps(t.raw, _MM_FROUND_TO_NEG_INF)});
  const __mmask16 counts = _mm512_cmp_ps_mask(t.raw, _mm512_setzero_ps(), _CMP_NLT_UQ);
  return VF{_mm512_maskz_scalef_ps(counts, p.raw, t.raw)};
#else
  const hn::RebindToUnsigned<DF> du;
  t = ClampLow(DF(), hn::Set(DF(), -1.0f), t);
  const VF n = hn::Floor(t);
  const VF p = WeightPolynomial<kCompute, 1>(hn::Sub(t, n));
  // n + 1 in the low bits; shifted left they are the float 2^(n - 126), or 0.
  const VF shifted = hn::Add(n, hn::Set(DF(), 12582912.0f + 1.0f));
  return hn::Mul(p, hn::BitCast(DF(), hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
#endif
}

// A base from which so much is not taken without losing all of kWeightShift.
inline constexpr float kHugeBase = 0x1p20f;

HWY_INLINE bool AnyAbove(const VF* base, float limit) {
  auto above = hn::Gt(hn::Abs(base[0]), hn::Set(DF(), limit));
  for (size_t v = 1; v < kStripVecs; ++v)
    above = hn::Or(above, hn::Gt(hn::Abs(base[v]), hn::Set(DF(), limit)));
  return !hn::AllFalse(DF(), above);
}

// Where the base of a query is huge, it is taken from the query's z and becomes 0.
inline HWY_NOINLINE void SubtractHuge(float* z, size_t tokens, VF* base) {
  VF huge[kStripVecs];
  for (size_t v = 0; v < kStripVecs; ++v) {
    huge[v] = hn::IfThenElseZero(hn::Gt(hn::Abs(base[v]), hn::Set(DF(), kHugeBase)), base[v]);
    base[v] = hn::Sub(base[v], huge[v]);
  }
  for (size_t i = 0; i < tokens * 16; i += 16) {
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = z + i + v * kVecFloats;
      hn::Store(hn::Sub(hn::Load(DF(), at), huge[v]), DF(), at);
    }
  }
}

// Weights of four keys as the words of their bytes.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE VI QuadsOfWeights(const VI* p) {
  // Bytes of keys 0 to 3 of four queries each, then a transpose of every 4 x 4 of them: shifts
  // would all wait for one port.
  const __m512i pairs0 = _mm512_packus_epi32(p[0].raw, p[1].raw);
  const __m512i pairs1 = _mm512_packus_epi32(p[2].raw, p[3].raw);
  const __m512i order = _mm512_set4_epi32(0x0F0B0703, 0x0E0A0602, 0x0D090501, 0x0C080400);
  return VI{_mm512_shuffle_epi8(_mm512_packus_epi16(pairs0, pairs1), order)};
}
#else
HWY_INLINE VI QuadsOfWeights(const VI* p) {
  return hn::Or(hn::Or(p[0], hn::ShiftLeft<8>(p[1])),
                hn::Or(hn::ShiftLeft<16>(p[2]), hn::ShiftLeft<24>(p[3])));
}
#endif

// The z of `count` <= 4 keys become the words of their weights: two rows of pairs (0 and 2, 1 and
// 3), or one of all four. low: base - kWeightShift. sum: two chains, so that its additions do not
// wait for each other.
template <Compute kCompute, size_t kNumbers>
HWY_INLINE void WeightsOfFour(const float* z, size_t count, const VF* HWY_RESTRICT low,
                              const float* HWY_RESTRICT inverse, float* words,
                              VF (*HWY_RESTRICT sum)[kStripVecs]) {
  // All are read before the first is written over.
  VI p[kStripVecs][4];
  EQ_UNROLL
  for (size_t key = 0; key < 4; ++key) {
    EQ_UNROLL
    for (size_t v = 0; v < kStripVecs; ++v) {
      p[v][key] = hn::Zero(DI());
      if (key >= count) continue;
      const VF w = Weight<kCompute>(Above(hn::Load(DF(), z + key * 16 + v * kVecFloats), low[v]));
      sum[key % 2][v] = hn::MulAdd(w, hn::Set(DF(), inverse[key]), sum[key % 2][v]);
      p[v][key] = RoundToInt(w);
    }
  }
  EQ_UNROLL
  for (size_t v = 0; v < kStripVecs; ++v) {
    float* const to = words + v * kVecFloats;
    if constexpr (kNumbers == 4) {
      hn::Store(hn::BitCast(DF(), QuadsOfWeights(p[v])), DF(), to);
    } else {
      EQ_UNROLL
      for (size_t i = 0; i < 2; ++i) {
        const VI word = hn::Or(p[v][i], hn::ShiftLeft<16>(p[v][i + 2]));
        hn::Store(hn::BitCast(DF(), word), DF(), to + i * 16);
      }
    }
  }
}

// z [tokens][16] of one query strip become words of weights in the same place, zeros up to a whole
// strip; sum: of the weights without the values' scales.
template <Compute kCompute, size_t kNumbers>
HWY_NOINLINE void IntWeights(float* scores, size_t tokens, const VF* base, const float* inverse,
                             VF* sum) {
  constexpr size_t kKeyWords = 16 / kNumbers;  // a key's share of words
  VF low[kStripVecs], total[2][kStripVecs];
  for (size_t v = 0; v < kStripVecs; ++v) {
    low[v] = hn::Sub(base[v], hn::Set(DF(), kWeightShift));
    total[0][v] = total[1][v] = hn::Zero(DF());
  }
  size_t key = 0;
  for (; key + 4 <= tokens; key += 4) {
    WeightsOfFour<kCompute, kNumbers>(scores + key * 16, 4, low, inverse + key,
                                      scores + key * kKeyWords, total);
  }
  if (key < tokens) {
    WeightsOfFour<kCompute, kNumbers>(scores + key * 16, tokens - key, low, inverse + key,
                                      scores + key * kKeyWords, total);
    key += 4;
  }
  std::fill(scores + key * kKeyWords, scores + (tokens + 15) / 16 * 16 * kKeyWords, 0.0f);
  for (size_t v = 0; v < kStripVecs; ++v) sum[v] = hn::Add(total[0][v], total[1][v]);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_INT_WEIGHTS_INL_H_
