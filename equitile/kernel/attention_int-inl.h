// The operands of attention in integers, int16 or int8: how scores, weights and outputs of a chunk
// are computed. Products are summed in int32, exactly.
//
// A score becomes z = sum * scale of the key * scale of the query + log2(scale of the value), in
// units of log2; a weight is 2^(z - the largest z of the chunk), rounded. So the scale of a value
// is a part of the weight of its key, and the sum over keys has one unit. The divisor is summed
// from weights that are not rounded and with the value's scale taken out again: rounded weights of
// a key with small values would be worth nothing to it.
#if defined(EQUITILE_KERNEL_ATTENTION_INT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_INT_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_INT_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_INT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "equitile/kernel/attention_amx-inl.h"
#include "equitile/kernel/attention_group.h"
#include "equitile/kernel/attention_toucher-inl.h"
#include "equitile/kernel/exp-inl.h"
#include "equitile/kernel/gemm-inl.h"
#include "equitile/kernel/integer_products-inl.h"
#include "equitile/kernel/target.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

inline const int32_t* AsWords(const std::byte* strip) {
  return reinterpret_cast<const int32_t*>(strip);
}

// The rows of a tile. A product is two instructions with a short chain (the addition), so few rows
// are enough; on AVX2 four rows run at 1.62 to 1.67 times the f32 tile, five at 1.53, six at 1.36
// (registers are spilled), three rows of two strips at 1.1.
#if HWY_TARGET == HWY_AVX3
inline constexpr size_t kIntTileRows = 8;
inline constexpr size_t kIntTileStrips = 2;
#else
inline constexpr size_t kIntTileRows = HWY_MIN(kTileRows, size_t{4});
inline constexpr size_t kIntTileStrips = 1;
#endif

// Calls body.Rows<n>(first_row) for n = kIntTileRows as far as they fit, then for single rows.
template <class Body>
HWY_INLINE void ForIntRows(size_t rows, const Body& body) {
  size_t row = 0;
  for (; row + kIntTileRows <= rows; row += kIntTileRows) body.template Rows<kIntTileRows>(row);
  if constexpr (kIntTileRows > 1) {
    for (; row < rows; ++row) body.template Rows<1>(row);
  }
}

// Words of four int8 as words of two int16 (WidenQuads). flip: what turns them into int8.
HWY_INLINE void WidenWords(const int32_t* HWY_RESTRICT from, size_t words, uint32_t flip,
                           int32_t* HWY_RESTRICT even, int32_t* HWY_RESTRICT odd) {
  for (size_t i = 0; i < words; i += kVecFloats) {
    const VI bytes = hn::LoadU(DI(), from + i);
    const auto pairs = WidenQuads(DI(), hn::Xor(bytes, hn::Set(DI(), static_cast<int32_t>(flip))));
    hn::StoreU(pairs.even, DI(), even + i);
    hn::StoreU(pairs.odd, DI(), odd + i);
  }
}

// Words of int8 in a strip of queries or keys.
inline size_t ByteWords(int64_t head_dim) {
  return static_cast<size_t>(StripWordBytes(head_dim, Compute::kInt8)) / 4;
}

// A strip of queries, or of keys: of every four dims first 0 and 2, after all of these 1 and 3.
inline void WidenDims(const std::byte* strip, int64_t head_dim, uint32_t flip, std::byte* to) {
  const size_t words = ByteWords(head_dim);
  auto* out = reinterpret_cast<int32_t*>(to);
  WidenWords(AsWords(strip), words, flip, out, out + words);
}
inline void WidenKey(const std::byte* strip, int64_t head_dim, std::byte* to) {
  WidenDims(strip, head_dim, 0x80808080u, to);
}
inline void WidenValue(const std::byte* strip, int64_t head_dim, std::byte* to) {
  auto* out = reinterpret_cast<int32_t*>(to);
  for (size_t row = 0; row < ByteWords(head_dim) / 16; ++row)
    WidenWords(AsWords(strip) + 16 * row, 16, 0, out + 32 * row, out + 32 * row + 16);
}

// A strip of queries of bytes as its group has it: wide, or, where quads of bytes are multiplied,
// as it is with the sums that scores begin at behind it (keys are 128 too large). Scales are last.
inline void PlaceQuery(const std::byte* strip, int64_t head_dim, std::byte* to) {
  const size_t words = ByteWords(head_dim);
  std::copy_n(strip + 4 * words, kStripTokens * 4, to + 8 * words);
  if (ActiveProducts() == IntegerProducts::kPairs) return WidenDims(strip, head_dim, 0, to);
  std::copy_n(strip, 4 * words, to);
  auto* begin = reinterpret_cast<int32_t*>(to) + words;
  for (size_t at = 0; at < 16; at += kVecFloats) {
    VI sum = hn::Zero(DI());
    const VI ones = hn::Set(DI(), 0x10001);
    for (size_t w = at; w < words; w += 16) {
      const auto pairs = WidenQuads(DI(), hn::LoadU(DI(), AsWords(strip) + w));
      sum = PairMath::MulAdd(pairs.even, ones, PairMath::MulAdd(pairs.odd, ones, sum));
    }
    hn::StoreU(hn::Neg(hn::ShiftLeft<7>(sum)), DI(), begin + at);
  }
}

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

// Sums of products that begin at the bits of this float are floats: it plus the sum, while that is
// below 2^22. So they need no conversion.
inline constexpr float kFloatSum = 12582912.0f;
constexpr bool SumsAreFloats(int64_t head_dim, Compute compute) {
  return compute == Compute::kInt8 && head_dim * 127 * 127 < 1 << 22;
}

// What a chunk's keys are multiplied by or add: [tokens of a chunk] each, shorts and share of those
// whose z are shorts (kShortStep).
struct KeyScales {
  explicit KeyScales(float* memory)
      : key(memory),
        offset(memory + kChunkStrips * kStripTokens),
        log2_value(memory + 2 * kChunkStrips * kStripTokens),
        inverse_value(memory + 3 * kChunkStrips * kStripTokens),
        shorts(memory + 4 * kChunkStrips * kStripTokens),
        share(reinterpret_cast<int32_t*>(memory + 5 * kChunkStrips * kStripTokens)) {}
  float *key, *offset, *log2_value, *inverse_value, *shorts;
  int32_t* share;
};

// z of int8 as int16, two to a word: 2^(z - top) is then a look-up among 64 words and a shift, of
// 32 numbers at once. A step is 1 / 64 of a power of two, 0.5 % of a weight from its true z at
// most: what the rounding of queries and keys does to z is several times that. Shorts hold
// |z| < 512: strips of queries whose maxima are elsewhere, and chunks whose values' scales differ
// by more than kShortSpan powers of two (the divisor would lose those of small values), have
// floats.
inline constexpr bool kShorts = kIntTileRows % 4 == 0;
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

// z[token][16 queries] of a key strip for kStrips query strips, and the largest of each query.
// kToShorts: in steps, two keys to a word (WeightsOfShorts).
template <class Products, size_t kStrips, bool kToShorts>
struct IntScoreTile {
  using Math = typename Products::Keys;

  const int32_t* k;  // key strip; of AMX its sums with the queries, [kStrips][16][16]
  const int32_t* q;  // query strips, q_stride words apart
  float* z;          // of this key strip
  const float *key_scale, *key_offset, *log2_value;
  const VF* query_scale;  // [kStrips * kStripVecs]
  VF* maximum;
  const VI* begin;          // [kStrips * kStripVecs] what sums begin at
  size_t q_stride, groups;  // groups of eight words
  bool float_sums;          // see kFloatSum
  Toucher* touch;
  LineToucher* lines;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    touch->Tile();
    Tile<kRows, kStrips, Math> tile;
    LineToucher here = *lines;
    if constexpr (Products::kSummedBefore) {
      tile.Load(k + row * 16, 16, kAmxStripSums);
      for (size_t g = 0; g < groups; ++g) Touch(here);
    } else {
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        EQ_UNROLL
        for (size_t v = 0; v < tile.kVecs; ++v) tile.c[r][v] = begin[v];
      }
      const int32_t *a = k + row * 8, *panel = q;
      for (size_t g = 0; g < groups; ++g, a += 128, panel += 128) {
        Touch(here);
        tile.template MultiplyAddFixed<AOrder::kRowMajor, 8, 8>(a, panel, q_stride);
      }
    }
    *lines = here;
    if (float_sums) {
      Finish(row, tile, [](VI sum, VF scale, VF offset) {
        return hn::MulAdd(hn::BitCast(DF(), sum), scale, offset);
      });
    } else {
      Finish(row, tile,
             [](VI sum, VF scale, VF) { return hn::Mul(hn::ConvertTo(DF(), sum), scale); });
    }
  }

 private:
  // The share of eight words of dims.
  static EQ_TILE void Touch(LineToucher& here) {
    for (size_t dims = 0; dims < 8 * Math::kNumbers; dims += 16)
      here.template Step<Math::kNumbers>();
  }

  // Sums become z; scaled(sum, scale of the key, its offset).
  template <size_t kRows, class Scaled>
  EQ_TILE void Finish(size_t row, const Tile<kRows, kStrips, Math>& tile,
                      const Scaled& scaled) const {
    // From one place each: from `row` on, compilers compute every address anew.
    const float *const scales = key_scale + row, *const offsets = key_offset + row;
    const float* const adds = log2_value + row;
    float* const to = z + row * (kToShorts ? 8 : 16);
    VF m[tile.kVecs];
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) m[v] = maximum[v];
    const auto log2_weight = [&](size_t r, size_t v) HWY_ATTR {
      const VF x = scaled(tile.c[r][v], hn::Set(DF(), scales[r]), hn::Set(DF(), offsets[r]));
      const VF result = hn::MulAdd(x, query_scale[v], hn::Set(DF(), adds[r]));
      m[v] = hn::Max(m[v], result);
      return result;
    };
    const auto place = [&](size_t row_of, size_t v) {
      return to + (v / kStripVecs) * kChunkFloats + row_of * 16 + v % kStripVecs * kVecFloats;
    };
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < tile.kVecs; ++v) {
        if constexpr (kToShorts) {
          if (r % 4 >= 2) continue;
          const VI word = ShortPair(log2_weight(r, v), log2_weight(r + 2, v));
          hn::Store(hn::BitCast(DF(), word), DF(), place(r / 4 * 2 + r % 2, v));
        } else {
          hn::Store(log2_weight(r, v), DF(), place(r, v));
        }
      }
    }
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) maximum[v] = m[v];
  }
};

// o[dim][16 queries] = o * factor + V^T P * share for 16 dims.
template <class Products, size_t kStrips>
struct IntOutputTile {
  using Math = typename Products::Values;

  const int32_t* const* v;  // value strips, at these dims; of AMX unused
  size_t strips;
  const int32_t*
      p;     // weights, kChunkFloats words from strip to strip; of AMX [kStrips][16][16] sums
  float* o;  // at these dims, o_stride floats from strip to strip
  const VF* factor;  // null: the output so far is 0
  const VF* share;
  size_t o_stride;
  Toucher* touch;
  LineToucher* lines;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    touch->Tile();
    Tile<kRows, kStrips, Math> tile;
    LineToucher here = *lines;
    if constexpr (Products::kSummedBefore) {
      tile.Load(p + row * 16, 16, kAmxStripSums);
      for (size_t i = 0; i < strips; ++i) here.template Step<Math::kNumbers>();
    } else {
      tile.Zero();
      Multiply(row, tile, here);
    }
    *lines = here;
    factor != nullptr ? Finish<true>(row, tile) : Finish<false>(row, tile);
  }

 private:
  template <size_t kRows>
  EQ_TILE void Multiply(size_t row, Tile<kRows, kStrips, Math>& tile, LineToucher& here) const {
    constexpr size_t kWords = 16 / Math::kNumbers;
    const int32_t* panel = p;
    for (size_t i = 0; i < strips; ++i, panel += 16 * kWords) {
      here.template Step<Math::kNumbers>();
      const int32_t* const a = v[i] + row;
      // The lines of the next 16 dims are not where the processor expects them: after those of
      // other strips. The tiles of these share them.
      EQ_UNROLL
      for (size_t line = 0; line < kWords * kRows / 16; ++line)
        __builtin_prefetch(a + (kWords + kWords * kRows / 16 * (row / kRows) + line) * 16, 0, 3);
      tile.template MultiplyAddFixed<AOrder::kColumnMajor, 16, kWords>(a, panel, kChunkFloats);
    }
  }

  template <bool kAdd, size_t kRows>
  EQ_TILE void Finish(size_t row, const Tile<kRows, kStrips, Math>& tile) const {
    float* const to = o + row * 16;
    EQ_UNROLL
    for (size_t c = 0; c < tile.kVecs; ++c) {
      const VF unit = share[c], before = kAdd ? factor[c] : unit;
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        float* const at = to + (c / kStripVecs) * o_stride + r * 16 + c % kStripVecs * kVecFloats;
        VF sum = hn::Mul(hn::ConvertTo(DF(), tile.c[r][c]), unit);
        if constexpr (kAdd) sum = hn::MulAdd(hn::Load(DF(), at), before, sum);
        hn::Store(sum, DF(), at);
      }
    }
  }
};

// How keys meet queries, and values weights. kSummedBefore: in tiles of AMX, before a register tile
// takes the sums up.
struct PairProducts {
  static constexpr bool kSummedBefore = false;
  using Keys = PairMath;
  using Values = PairMath;
  using Sums = PairMath;
};
struct VnniPairProducts {
  static constexpr bool kSummedBefore = false;
  using Keys = VnniPairMath;
  using Values = VnniPairMath;
};
struct QuadProducts {
  static constexpr bool kSummedBefore = false;
  using Keys = UnsignedRowsMath;
  using Values = UnsignedPanelsMath;
  using Sums = VnniPairMath;
};
struct AmxProducts : QuadProducts {
  static constexpr bool kSummedBefore = true;
};

// An operand type of the chunk update (attention_chunk.cc), as F32Operand is.
template <Compute kCompute, class Products>
class IntOperand {
 public:
  // Reads the chunk's scales, and widens its bytes where the tile multiplies pairs of int16: once
  // for all query strips of the group.
  IntOperand(const QueryGroup& group, const Chunk& chunk)
      : chunk_(chunk),
        memory_(group.memory),
        scales_(group.memory.keys),
        head_dim_(group.args.head_dim),
        score_scale_(group.args.scale * kLog2E),
        amx_(chunk, head_dim_, group.memory.wide) {
    const int64_t scales_at = StripWordBytes(head_dim_, kCompute);
    for (size_t i = 0; i < chunk.size; ++i) {
      const auto* key = reinterpret_cast<const float*>(chunk.k[i] + scales_at);
      const auto* value = reinterpret_cast<const float*>(chunk.v[i] + scales_at);
      for (size_t at = 0; at < 16; at += kVecFloats) {
        const VF log2_value = hn::LoadU(DF(), value + at);
        const VF scale = hn::LoadU(DF(), key + at);
        hn::Store(scale, DF(), scales_.key + i * 16 + at);
        hn::Store(hn::Mul(scale, hn::Set(DF(), -kFloatSum)), DF(), scales_.offset + i * 16 + at);
        hn::Store(log2_value, DF(), scales_.log2_value + i * 16 + at);
        hn::Store(Exp2(DF(), hn::Neg(log2_value)), DF(), scales_.inverse_value + i * 16 + at);
      }
      k_[i] = AsWords(chunk.k[i]);
      v_[i] = AsWords(chunk.v[i]);
      if constexpr (kCompute == Compute::kInt8 && kNumbers == 2) Widen(i);
    }
    if constexpr (kMayBeShorts) {
      if (group.args.bias.data == nullptr) ReadShorts();
    }
  }

  static constexpr size_t kNumbers = Products::Keys::kNumbers;  // in a word
  static constexpr size_t kPassStrips = kIntTileStrips, kTilesOfStrip = 16 / kIntTileRows;
  // Weights are relative to the maximum of their chunk, in these units.
  static constexpr bool kOwnBase = true;
  static constexpr float kWeightUnit = 1.0f / WeightTop(kCompute);

  // Scores come in units of log2.
  float ScoreScale() const { return 1.0f; }
  static bool MustScale(const VF* /*maximum*/, VF /*c*/) { return false; }

  template <size_t kStrips>
  void Scores(size_t strip, VF* maximum, Toucher* touch) const {
    std::fill_n(shorts_, kStrips, chunk_shorts_);
    if constexpr (kMayBeShorts) {
      if (HWY_LIKELY(chunk_shorts_)) {
        ScoresAt<kStrips, true>(strip, 0, maximum, touch);
        for (size_t s = 0; s < kStrips; ++s) {
          if (HWY_LIKELY(ToSteps(maximum + s * kStripVecs))) continue;
          shorts_[s] = false;
          ScoresAt<1, false>(strip + s, s, maximum + s * kStripVecs, touch);
        }
        return;
      }
    }
    ScoresAt<kStrips, false>(strip, 0, maximum, touch);
  }

  // slot: where in the memory of scores the first strip has its own.
  template <size_t kStrips, bool kToShorts>
  HWY_NOINLINE void ScoresAt(size_t strip, size_t slot, VF* maximum, Toucher* touch) const {
    const auto query_bytes = static_cast<size_t>(GroupQueryBytes(head_dim_, kCompute));
    const std::byte* const q = memory_.q + strip * query_bytes;
    const size_t groups = static_cast<size_t>(PaddedDim(head_dim_, kCompute)) / (8 * kNumbers);
    const bool float_sums = SumsAreFloats(head_dim_, kCompute);
    VF query_scale[kStrips * kStripVecs], top[kStrips * kStripVecs];
    VI begin[kStrips * kStripVecs];
    for (size_t v = 0; v < kStrips * kStripVecs; ++v) {
      const std::byte* const strip_q = q + v / kStripVecs * query_bytes;
      const auto* scale =
          reinterpret_cast<const float*>(strip_q + query_bytes) - static_cast<int>(kStripTokens);
      begin[v] = float_sums ? hn::BitCast(DI(), hn::Set(DF(), kFloatSum)) : hn::Zero(DI());
      if constexpr (kNumbers == 4) {
        begin[v] = hn::Add(begin[v], hn::Load(DI(), AsWords(strip_q) + groups * 128 +
                                                        v % kStripVecs * kVecFloats));
      }
      query_scale[v] =
          hn::Mul(hn::Load(DF(), scale + v % kStripVecs * kVecFloats), hn::Set(DF(), score_scale_));
      if constexpr (kToShorts)
        query_scale[v] = hn::Mul(query_scale[v], hn::Set(DF(), 1.0f / kShortStep));
      top[v] = hn::Set(DF(), -std::numeric_limits<float>::infinity());
    }
    HWY_ALIGN int32_t begin_words[kStrips * kStripTokens];
    for (size_t v = 0; v < kStrips * kStripVecs; ++v)
      hn::Store(begin[v], DI(), begin_words + v * kVecFloats);
    auto sums = amx_.template ScoreSums<kStrips>(q, query_bytes, begin_words);
    for (size_t i = 0; i < chunk_.size; ++i) {
      LineToucher lines = touch->Keys(i);
      const IntScoreTile<Products, kStrips, kToShorts> tile{
          Products::kSummedBefore ? sums.Of(i) : k_[i],
          AsWords(q),
          memory_.scores + slot * kChunkFloats + i * (kToShorts ? 128 : 256),
          scales_.key + i * 16,
          scales_.offset + i * 16,
          (kToShorts ? scales_.shorts : scales_.log2_value) + i * 16,
          query_scale,
          top,
          begin,
          query_bytes / 4,
          groups,
          float_sums,
          touch,
          &lines};
      if constexpr (kToShorts) {  // tokens beyond the end too: they have no weight
        for (size_t row = 0; row < 16; row += kIntTileRows) tile.template Rows<kIntTileRows>(row);
      } else {
        ForIntRows(chunk_.Count(i), tile);
      }
    }
    std::copy_n(top, kStrips * kStripVecs, maximum);
  }

  void Weights(size_t slot, VF /*c*/, const VF* base, VF* sum) const {
    VF from[kStripVecs];
    std::copy_n(base, kStripVecs, from);
    float* const scores = memory_.scores + slot * kChunkFloats;
    if constexpr (kMayBeShorts) {
      if (HWY_LIKELY(shorts_[slot])) {
        return WeightsOfShorts<Products>(scores, chunk_.size, from, short_weights_, scales_.share,
                                         share_unit_, sum);
      }
    }
    if (HWY_UNLIKELY(AnyAbove(from, kHugeBase))) SubtractHuge(scores, chunk_.tokens, from);
    IntWeights<kCompute, kNumbers>(scores, chunk_.tokens, from, scales_.inverse_value, sum);
  }

  // factor: of the output so far, null where it is 0.
  template <size_t kStrips>
  HWY_NOINLINE void Outputs(size_t strip, const VF* factor, const VF* share, Toucher* touch) const {
    const size_t groups = static_cast<size_t>(CeilDiv(head_dim_, 16)), o_stride = groups * 256;
    auto sums = amx_.template OutputSums<kStrips>(memory_.scores);
    for (size_t g = 0; g < groups; ++g) {
      LineToucher lines = touch->Values(g);
      const int32_t* v[kChunkStrips];
      for (size_t i = 0; i < chunk_.size; ++i) v[i] = v_[i] + g * (256 / kNumbers);
      const IntOutputTile<Products, kStrips> tile{
          v,
          chunk_.size,
          Products::kSummedBefore ? sums.Of(g)
                                  : AsWords(reinterpret_cast<const std::byte*>(memory_.scores)),
          memory_.o + strip * o_stride + g * 256,
          factor,
          share,
          o_stride,
          touch,
          &lines};
      ForIntRows(16, tile);
    }
  }

 private:
  static constexpr bool kMayBeShorts = kShorts && kCompute == Compute::kInt8;

  // Whether z of this chunk may be shorts, as far as its keys and values are concerned; then what
  // these need.
  void ReadShorts() {
    const size_t tokens = chunk_.size * 16;
    float* const log2_value = scales_.log2_value;
    std::fill(log2_value + chunk_.tokens, log2_value + tokens, log2_value[0]);
    VF low = hn::Load(DF(), log2_value), high = low;
    auto finite = hn::Eq(low, low);
    const VF infinity = hn::Set(DF(), std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < tokens; i += kVecFloats) {
      const VF value = hn::Load(DF(), log2_value + i), key = hn::Load(DF(), scales_.key + i);
      low = hn::Min(low, value);
      high = hn::Max(high, value);
      finite = hn::And(finite, hn::And(hn::Eq(value, value), hn::Lt(key, infinity)));
      hn::Store(hn::Mul(value, hn::Set(DF(), 1.0f / kShortStep)), DF(), scales_.shorts + i);
    }
    const float least = hn::GetLane(hn::MinOfLanes(DF(), low));
    const float most = hn::GetLane(hn::MaxOfLanes(DF(), high));
    chunk_shorts_ = hn::AllTrue(DF(), finite) && most - least <= kShortSpan;
    if (!chunk_shorts_) return;
    std::fill(scales_.shorts + chunk_.tokens, scales_.shorts + tokens, -0x1p40f);
    // Of the divisor: what a value's scale has made of its weight, taken out again.
    HWY_ALIGN int32_t share[kChunkStrips * kStripTokens];
    for (size_t i = 0; i < tokens; i += kVecFloats) {
      const VF power = Exp2(DF(), hn::Sub(hn::Set(DF(), least), hn::Load(DF(), log2_value + i)));
      hn::Store(RoundToInt(hn::Mul(power, hn::Set(DF(), kShareTop))), DI(), share + i);
    }
    for (size_t i = 0; i < tokens; i += 4) {
      scales_.share[i] = share[i] | share[i + 2] << 16;
      scales_.share[i + 1] = share[i + 1] | share[i + 3] << 16;
    }
    const VF unit = Exp2(DF(), hn::Set(DF(), -least));
    share_unit_ = hn::GetLane(unit) * (WeightTop(kCompute) / (kShortWeight * kShareTop));
  }

  // Maxima that were computed in steps, rounded; false where a strip's are beyond the range.
  static bool ToSteps(VF* maximum) {
    auto within = hn::Eq(maximum[0], maximum[0]);
    for (size_t v = 0; v < kStripVecs; ++v) {
      maximum[v] = hn::Mul(hn::Round(maximum[v]), hn::Set(DF(), kShortStep));
      within = hn::And(within, hn::And(hn::Ge(maximum[v], hn::Set(DF(), kShortLow)),
                                       hn::Le(maximum[v], hn::Set(DF(), kShortHigh))));
    }
    return hn::AllTrue(DF(), within);
  }

  void Widen(size_t i) {
    const auto strip = static_cast<size_t>(WideStripPitch(head_dim_));
    std::byte *const k = memory_.wide + i * strip, *const v = k + kChunkStrips * strip;
    WidenKey(chunk_.k[i], head_dim_, k);
    WidenValue(chunk_.v[i], head_dim_, v);
    k_[i] = AsWords(k);
    v_[i] = AsWords(v);
  }

  const Chunk& chunk_;
  const GroupMemory& memory_;
  const KeyScales scales_;
  const int64_t head_dim_;
  const float score_scale_;
  const int32_t* k_[kChunkStrips];
  const int32_t* v_[kChunkStrips];
  const std::conditional_t<Products::kSummedBefore, AmxChunk, NoAmxChunk> amx_;
  const ShortWeights short_weights_{};
  float share_unit_ = 0.0f;
  bool chunk_shorts_ = false;
  mutable bool shorts_[kIntTileStrips];  // of the strips of this pass
};

// Where a group's query strip has a dim: its word, and the shifts that leave the number alone.
struct QueryPlace {
  int64_t word;
  int left, right;
};
inline QueryPlace PlaceOfDim(int64_t dim, int64_t padded, Compute compute) {
  if (compute == Compute::kInt16) return {dim / 2, dim % 2 ? 0 : 16, 16};
  if (ActiveProducts() != IntegerProducts::kPairs)
    return {dim / 4, static_cast<int>(24 - dim % 4 * 8), 24};
  return {dim % 2 * (padded / 4) + dim / 4, dim % 4 < 2 ? 16 : 0, 16};  // see WidenDims
}

// The strip'th queries of a group as f32, [head_dim][16]: what they were rounded to.
inline const float* QueryFloats(const QueryGroup& group, int64_t strip) {
  const Compute compute = group.args.compute;
  const int64_t dims = RoundUp(group.args.head_dim, 16), padded = PaddedDim(dims, compute);
  const int64_t bytes = GroupQueryBytes(group.args.head_dim, compute);
  const std::byte* const q = group.memory.q + strip * bytes;
  const auto* scale = reinterpret_cast<const float*>(q + bytes) - kStripTokens;
  for (int64_t dim = 0; dim < dims; ++dim) {
    const QueryPlace place = PlaceOfDim(dim, padded, compute);
    for (size_t at = 0; at < 16; at += kVecFloats) {
      const VI word = hn::Load(DI(), AsWords(q) + place.word * 16 + static_cast<int64_t>(at));
      const VI x = hn::ShiftRightSame(hn::ShiftLeftSame(word, place.left), place.right);
      hn::Store(hn::Mul(hn::ConvertTo(DF(), x), hn::LoadU(DF(), scale + at)), DF(),
                group.memory.q_floats + dim * 16 + static_cast<int64_t>(at));
    }
  }
  return group.memory.q_floats;
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_INT_INL_H_
