#include <limits>

#include "equitile/kernel/attention/attention_group.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/attention/attention_chunk.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/attention/attention_f32-inl.h"
#include "equitile/kernel/attention/attention_int-inl.h"
#include "equitile/kernel/attention/attention_masses-inl.h"
#include "equitile/kernel/attention/attention_toucher-inl.h"
#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// Scores become log2-scaled with their bias added, and the maximum is taken again.
template <size_t kStrips>
void AddBias(const QueryGroup& group, const Chunk& chunk, size_t strip, float score_scale,
             float* scores, VF* maximum) {
  const AttentionArgs& args = group.args;
  const int32_t *q_order = args.QOrder(group.lane), *kv_order = args.KvOrder(group.lane);
  const float* base = args.bias.data + args.lanes.BatchOf(group.lane) * args.bias.batch_stride +
                      args.lanes.HeadOf(group.lane) * args.bias.head_stride;
  const VF c = hn::Set(DF(), score_scale), log2e = hn::Set(DF(), kLog2E);
  for (size_t s = 0; s < kStrips; ++s) {
    const float* q_row[kStripTokens];
    for (int64_t t = 0; t < kStripTokens; ++t) {
      const int64_t position =
          std::min(group.FirstToken(static_cast<int64_t>(strip + s)) + t, args.grid.q_tokens - 1);
      q_row[t] = base + (q_order ? q_order[position] : position) * args.bias.q_stride;
    }
    VF* m = maximum + s * kStripVecs;
    for (size_t v = 0; v < kStripVecs; ++v)
      m[v] = hn::Set(DF(), -std::numeric_limits<float>::infinity());
    float* row = scores + s * kChunkFloats;
    for (size_t i = 0; i < chunk.size; ++i) {
      for (size_t j = 0; j < chunk.Count(i); ++j, row += 16) {
        const int64_t position = chunk.position[i] + static_cast<int64_t>(j);
        const int64_t key = kv_order ? kv_order[position] : position;
        HWY_ALIGN float bias[kStripTokens];
        for (int64_t t = 0; t < kStripTokens; ++t) bias[t] = q_row[t][key];
        for (size_t v = 0; v < kStripVecs; ++v) {
          const VF b = hn::Mul(hn::Load(DF(), bias + v * kVecFloats), log2e);
          const VF x = hn::MulAdd(hn::Load(DF(), row + v * kVecFloats), c, b);
          hn::Store(x, DF(), row + v * kVecFloats);
          m[v] = hn::Max(m[v], x);
        }
      }
    }
  }
}

// The same for means, each with the weight of the tokens that it stands for.
template <size_t kStrips>
void AddCounts(const Chunk& chunk, float score_scale, float* scores, VF* maximum) {
  const VF c = hn::Set(DF(), score_scale);
  for (size_t s = 0; s < kStrips; ++s) {
    VF* m = maximum + s * kStripVecs;
    for (size_t v = 0; v < kStripVecs; ++v)
      m[v] = hn::Set(DF(), -std::numeric_limits<float>::infinity());
    float* row = scores + s * kChunkFloats;
    for (size_t i = 0; i < chunk.tokens; ++i, row += 16) {
      const VF log2_count = hn::Set(DF(), chunk.log2_count[i]);
      for (size_t v = 0; v < kStripVecs; ++v) {
        const VF x = hn::MulAdd(hn::Load(DF(), row + v * kVecFloats), c, log2_count);
        hn::Store(x, DF(), row + v * kVecFloats);
        m[v] = hn::Max(m[v], x);
      }
    }
  }
}

// One chunk for kStrips query strips, beginning with the strip'th of the group. What differs
// between operand types: how scores, weights and outputs are computed, and what weights are
// relative to. Against the row's running maximum f32 needs no second factor. Integer weights have
// few bits and are relative to the maximum of their own chunk: `share` brings them to the row's.
template <size_t kStrips, class Operand>
void AddToStrips(const Operand& operand, const QueryGroup& group, const Chunk& chunk, size_t strip,
                 Toucher* touch) {
  constexpr size_t kVecs = kStrips * kStripVecs;
  const AttentionArgs& args = group.args;
  const GroupMemory& memory = group.memory;

  VF maximum[kVecs];
  operand.template Scores<kStrips>(strip, maximum, touch);
  const bool scaled = args.bias.data != nullptr || chunk.log2_count != nullptr;
  if (chunk.log2_count != nullptr) {
    AddCounts<kStrips>(chunk, operand.ScoreScale(), memory.scores, maximum);
  } else if (scaled) {
    AddBias<kStrips>(group, chunk, strip, operand.ScoreScale(), memory.scores, maximum);
  }

  VF factor[kVecs], share[kVecs];
  for (size_t s = 0; s < kStrips; ++s) {
    VF sum[kStripVecs], base[kStripVecs];
    VF* m = maximum + s * kStripVecs;
    float* const scores = memory.scores + s * kChunkFloats;
    VF c = hn::Set(DF(), scaled ? 1.0f : operand.ScoreScale());
    if (HWY_UNLIKELY(!scaled && Operand::MustScale(m, c))) {
      ScaleScores(chunk.tokens, c, scores);
      for (size_t v = 0; v < kStripVecs; ++v) m[v] = hn::Mul(m[v], c);
      c = hn::Set(DF(), 1.0f);
    }
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = memory.maximum + (strip + s) * 16 + v * kVecFloats;
      const VF old = hn::Load(DF(), at), top = hn::Mul(m[v], c), now = hn::Max(old, top);
      factor[s * kStripVecs + v] = Exp2(DF(), hn::Sub(old, now));
      hn::Store(now, DF(), at);
      base[v] = now;
      if constexpr (Operand::kOwnBase) {
        base[v] = hn::Max(hn::Set(DF(), kLowestScore), top);
        share[s * kStripVecs + v] =
            hn::Mul(Exp2(DF(), hn::Sub(base[v], now)), hn::Set(DF(), Operand::kWeightUnit));
      }
    }
    operand.Weights(s, c, base, sum);
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = memory.sum + (strip + s) * 16 + v * kVecFloats;
      if constexpr (Operand::kOwnBase) sum[v] = hn::Mul(sum[v], share[s * kStripVecs + v]);
      hn::Store(hn::MulAdd(hn::Load(DF(), at), factor[s * kStripVecs + v], sum[v]), DF(), at);
    }
    if (args.masses != nullptr && chunk.log2_count == nullptr)
      Masses(group).Add(chunk, static_cast<int64_t>(strip + s), scores, base);
  }
  operand.template Outputs<kStrips>(strip, group.begun ? factor : nullptr, share, touch);
}

// The strips of the group one after the other, two at a time where a register tile holds two.
template <class Operand>
void WalkStrips(const Operand& operand, const QueryGroup& group, const Chunk& chunk,
                const NextReads& next) {
  constexpr size_t kPass = Operand::kPassStrips;
  const auto size = static_cast<size_t>(group.size);
  Toucher touch(next, chunk, (size + kPass - 1) / kPass, Operand::kTilesOfStrip, group.args);
  size_t s = 0;
  for (; s + kPass <= size; s += kPass, touch.NextPass())
    AddToStrips<kPass>(operand, group, chunk, s, &touch);
  if constexpr (kPass > 1) {
    for (; s < size; ++s, touch.NextPass()) AddToStrips<1>(operand, group, chunk, s, &touch);
  }
}

// Means are never rounded: they meet the queries, as these were rounded, in f32.
void AddMeansToIntegers(const QueryGroup& group, const Chunk& chunk, const NextReads& next) {
  const auto size = static_cast<size_t>(group.size);
  Toucher touch(next, chunk, size, F32Operand::kTilesOfStrip, group.args);
  for (size_t s = 0; s < size; ++s, touch.NextPass()) {
    const float* q = QueryFloats(group, static_cast<int64_t>(s));
    const F32Operand operand(group, chunk, reinterpret_cast<const std::byte*>(q), s);
    AddToStrips<1>(operand, group, chunk, s, &touch);
  }
}

template <Compute kCompute, class Products>
void AddIntegers(const QueryGroup& group, const Chunk& chunk, const NextReads& next) {
  WalkStrips(IntOperand<kCompute, Products>(group, chunk), group, chunk, next);
}

// Queries lie alike for both, keys and values are laid out anew for AMX, which few query strips do
// not pay for: of two at head_dim 32 it is at 0.9 of VNNI, of four at 0.97 to 1.03, and with blocks
// of 64 at head_dim 64 at 1.2.
bool AmxPays(int64_t query_strips, int64_t head_dim) {
  return query_strips * PaddedDim(head_dim, Compute::kInt8) >= 256;
}

void AddChunkT(const QueryGroup& group, const Chunk& chunk, const NextReads& next) {
  const Compute compute = group.args.compute;
  if (compute == Compute::kF32) {
    WalkStrips(F32Operand(group, chunk, group.memory.q), group, chunk, next);
  } else if (chunk.log2_count != nullptr) {
    AddMeansToIntegers(group, chunk, next);
  } else if (compute == Compute::kInt16) {
    ActiveProducts() == IntegerProducts::kPairs
        ? AddIntegers<Compute::kInt16, PairProducts>(group, chunk, next)
        : AddIntegers<Compute::kInt16, VnniPairProducts>(group, chunk, next);
  } else {
    switch (ActiveProducts()) {
      case IntegerProducts::kPairs:
        return AddIntegers<Compute::kInt8, PairProducts>(group, chunk, next);
      case IntegerProducts::kVnni:
        return AddIntegers<Compute::kInt8, QuadProducts>(group, chunk, next);
      case IntegerProducts::kAmx:
        return AmxPays(group.size, group.args.head_dim)
                   ? AddIntegers<Compute::kInt8, AmxProducts>(group, chunk, next)
                   : AddIntegers<Compute::kInt8, QuadProducts>(group, chunk, next);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(AddChunkT);
HWY_EXPORT(PlaceQuery);
}  // namespace

void AddChunk(QueryGroup& group, const Chunk& chunk, const NextReads& next) {
  HWY_DYNAMIC_DISPATCH(AddChunkT)(group, chunk, next);
  group.begun = true;
}

void PlaceByteQuery(const std::byte* strip, int64_t head_dim, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(PlaceQuery)(strip, head_dim, to);
}

}  // namespace equitile
#endif  // HWY_ONCE
