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

#include "equitile/kernel/attention/attention_amx-inl.h"
#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/attention/attention_int_strips-inl.h"
#include "equitile/kernel/attention/attention_int_tiles-inl.h"
#include "equitile/kernel/attention/attention_int_weights-inl.h"
#include "equitile/kernel/attention/attention_short_weights-inl.h"
#include "equitile/kernel/attention/attention_toucher-inl.h"
#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

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

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_INT_INL_H_
