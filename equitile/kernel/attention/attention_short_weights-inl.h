// The weights of int8 attention where z fit 16 bits: two keys to a word from the tile of scores on,
// and a look-up in place of a polynomial (attention_int_weights-inl.h).
#if defined(EQUITILE_KERNEL_ATTENTION_SHORT_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_SHORT_WEIGHTS_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_SHORT_WEIGHTS_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_SHORT_WEIGHTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// z of int8 as int16, two to a word: 2^(z - top) is then a look-up among 64 words and a shift, of
// 32 numbers at once. A step is 1 / 64 of a power of two, 0.5 % of a weight from its true z at
// most: what the rounding of queries and keys does to z is several times that. Shorts hold
// |z| < 512: strips of queries whose maxima are elsewhere, and chunks whose values' scales differ
// by more than kShortSpan powers of two (the divisor would lose those of small values), have
// floats.
inline constexpr float kShortStep = 1.0f / 64;
inline constexpr float kShortLow = -256.0f, kShortHigh = 511.0f, kShortSpan = 3.0f;
// The largest weight before it is rounded: 255 * 128. A sum of 16 of them times kShareTop is below
// 2^31.
inline constexpr float kShortWeight = 32640.0f, kShareTop = 4095.0f;

// 2^(-x / 64) for whole x in [0, 64), in units of kShortWeight: the words of the look-up.
HWY_INLINE VI ShortPower(VI x) {
  const VF step = hn::Set(DF(), kShortStep);
  const VF f = hn::NegMulAdd(hn::ConvertTo(DF(), x), step, hn::Set(DF(), 1.0f));
  const auto c = [](float a) { return hn::Set(DF(), 0.5f * kShortWeight * a); };
  VF p = hn::MulAdd(c(0.07802454382181168f), f, c(0.2260671705007553f));
  p = hn::MulAdd(p, f, c(0.6958335041999817f));
  return RoundToInt(hn::MulAdd(p, f, c(0.9999251961708069f)));
}

// Two z in steps, rounded, as the halves of a word: those below the range become the lowest, those
// above it are nobody's (ToSteps).
HWY_INLINE VI ShortPair(VF one, VF other) {
#if HWY_TARGET == HWY_AVX3
  // Rounded in its own instruction, without a clamp: what leaves int32 becomes its lowest.
  const __m512i order = _mm512_set4_epi32(0x0F0E0706, 0x0D0C0504, 0x0B0A0302, 0x09080100);
  const __m512i shorts = _mm512_packs_epi32(RoundToInt(one).raw, RoundToInt(other).raw);
  return VI{_mm512_shuffle_epi8(shorts, order)};
#else
  const VF low = hn::Set(DF(), -32768.0f);
  const VI a = RoundToInt(hn::Max(low, one)), b = RoundToInt(hn::Max(low, other));
  return hn::Or(hn::And(a, hn::Set(DI(), 0xFFFF)), hn::ShiftLeft<16>(b));
#endif
}

// Weights of words of two u = top - z, which are not negative. AVX-512 looks up what others
// compute.
class ShortWeights {
 public:
#if HWY_TARGET == HWY_AVX3
  ShortWeights() {
    HWY_ALIGN int16_t words[64];
    for (int32_t i = 0; i < 64; i += 16) {
      const VI power = ShortPower(hn::Iota(DI(), i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i), _mm512_cvtepi32_epi16(power.raw));
    }
    low_ = _mm512_load_si512(words);
    high_ = _mm512_load_si512(words + 32);
  }
  HWY_INLINE VI operator()(VI u) const {
    const __m512i power = _mm512_permutex2var_epi16(low_, u.raw, high_);
    return VI{_mm512_srlv_epi16(power, _mm512_srli_epi16(u.raw, 6))};
  }

 private:
  __m512i low_, high_;
#else
  HWY_INLINE VI operator()(VI u) const {
    const VI one = Of(hn::And(u, hn::Set(DI(), 0xFFFF))), other = Of(hn::ShiftRight<16>(u));
    return hn::Or(one, hn::ShiftLeft<16>(other));
  }

 private:
  static HWY_INLINE VI Of(VI u) {
    const VI shift = hn::Min(hn::ShiftRight<6>(u), hn::Set(DI(), 31));
    return hn::Shr(ShortPower(hn::And(u, hn::Set(DI(), 63))), shift);
  }
#endif
};

// z of a query strip, two keys to a word as values have them (0 and 2, 1 and 3), [strips][8][16],
// become words of weights in the same place. base: in steps, without a remainder.
template <class Products>
HWY_NOINLINE void WeightsOfShorts(float* scores, size_t strips, const VF* base,
                                  const ShortWeights& weights, const int32_t* share, float unit,
                                  VF* sum) {
#if HWY_TARGET != HWY_SCALAR
  using Math = typename Products::Sums;
  constexpr size_t kNumbers = Products::Keys::kNumbers;
  const hn::Repartition<int16_t, DI> d16;
  const ShortWeights weight = weights;  // in registers
  VI top[kStripVecs];
  VF total[kStripVecs];
  for (size_t v = 0; v < kStripVecs; ++v) {
    const VI z = RoundToInt(hn::Mul(base[v], hn::Set(DF(), 1.0f / kShortStep)));
    top[v] = hn::Or(hn::And(z, hn::Set(DI(), 0xFFFF)), hn::ShiftLeft<16>(z));
    total[v] = hn::Zero(DF());
  }
  const float* from = scores;
  float* to = scores;
  for (size_t strip = 0; strip < strips; ++strip, share += 16) {
    VI part[2][kStripVecs];
    for (size_t v = 0; v < kStripVecs; ++v) part[0][v] = part[1][v] = hn::Zero(DI());
    EQ_UNROLL
    for (size_t key = 0; key < 16; key += 4, from += 32, to += 64 / kNumbers) {
      EQ_UNROLL
      for (size_t v = 0; v < kStripVecs; ++v) {
        VI w[2];
        EQ_UNROLL
        for (size_t i = 0; i < 2; ++i) {
          const VI z = hn::BitCast(DI(), hn::Load(DF(), from + i * 16 + v * kVecFloats));
          const auto u = hn::SaturatedSub(hn::BitCast(d16, top[v]), hn::BitCast(d16, z));
          w[i] = weight(hn::BitCast(DI(), u));
          part[i][v] = Math::MulAdd(w[i], hn::Set(DI(), share[key + i]), part[i][v]);
          w[i] = hn::Add(w[i], hn::Set(DI(), 0x400040));  // half a unit of what is kept
        }
        const auto shorts = [&](VI x) {
          return hn::And(hn::ShiftRight<7>(x), hn::Set(DI(), 0xFF00FF));
        };
        float* const at = to + v * kVecFloats;
        if constexpr (kNumbers == 4) {
          const VI odd = hn::And(hn::Add(w[1], w[1]), hn::Set(DI(), static_cast<int>(0xFF00FF00u)));
          hn::Store(hn::BitCast(DF(), hn::Or(shorts(w[0]), odd)), DF(), at);
        } else {
          hn::Store(hn::BitCast(DF(), shorts(w[0])), DF(), at);
          hn::Store(hn::BitCast(DF(), shorts(w[1])), DF(), at + 16);
        }
      }
    }
    for (size_t v = 0; v < kStripVecs; ++v)
      total[v] = hn::Add(total[v], hn::ConvertTo(DF(), hn::Add(part[0][v], part[1][v])));
  }
  for (size_t v = 0; v < kStripVecs; ++v) sum[v] = hn::Mul(total[v], hn::Set(DF(), unit));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_SHORT_WEIGHTS_INL_H_
