// The operands of attention in f32: how scores, weights and outputs of a chunk are computed.
#if defined(EQUITILE_KERNEL_ATTENTION_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_F32_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_F32_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_F32_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/attention/attention_toucher-inl.h"
#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

inline const float* AsFloats(const std::byte* strip) {
  return reinterpret_cast<const float*>(strip);
}

// scores[token][16 queries] = K Q^T for a chunk and kStrips query strips, and the largest of each
// query.
template <size_t kStrips>
struct ScoreTile {
  const float* k;  // key strip
  const float* q;  // query strips, q_stride floats apart
  float* scores;   // of this key strip
  VF* maximum;     // [kStrips * kStripVecs]
  size_t q_stride, head_dim;
  Toucher* touch;
  LineToucher* lines;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    touch->Tile();
    Tile<kRows, kStrips> tile;
    tile.Zero();
    const float *a = k + row * 16, *panel = q;
    LineToucher here = *lines;
    for (size_t d = 16; d <= head_dim; d += 16, a += 256, panel += 256) {
      here.Step();
      tile.template MultiplyAddFixed<AOrder::kRowMajor, 16, 16>(a, panel, q_stride);
    }
    *lines = here;
    if (head_dim % 16 != 0)
      tile.template MultiplyAdd<AOrder::kRowMajor, 16>(a, 16, panel, q_stride, 8);
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) {
      VF m = maximum[v];
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) m = hn::Max(m, tile.c[r][v]);
      maximum[v] = m;
    }
    tile.Store(scores + row * 16, 16, kChunkFloats);
  }
};

// o[dim][16 queries] = o * factor + V^T P for 16 dims (fewer at the end of head_dim).
template <size_t kStrips>
struct OutputTile {
  const Chunk& chunk;
  size_t dim;        // first of the group of 16
  const float* p;    // [chunk tokens][16], strips kChunkFloats apart
  float* o;          // strips o_stride floats apart
  const VF* factor;  // [kStrips * kStripVecs]; null: the output so far is 0
  size_t o_stride;
  Toucher* touch;
  LineToucher* lines;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    touch->Tile();
    Tile<kRows, kStrips> tile;
    float* const to = o + (dim + row) * 16;
    if (factor == nullptr) {
      tile.Zero();
    } else {
      tile.Load(to, 16, o_stride);
      EQ_UNROLL
      for (size_t v = 0; v < tile.kVecs; ++v) {
        EQ_UNROLL
        for (size_t r = 0; r < kRows; ++r) tile.c[r][v] = hn::Mul(tile.c[r][v], factor[v]);
      }
    }
    const float* panel = p;
    const size_t full = chunk.tokens / 16;
    LineToucher here = *lines;
    for (size_t i = 0; i < full; ++i, panel += 256) {
      here.Step();
      tile.template MultiplyAddFixed<AOrder::kColumnMajor, 16, 16>(
          AsFloats(chunk.v[i]) + dim * 16 + row, panel, kChunkFloats);
    }
    *lines = here;
    if (full < chunk.size) {
      tile.template MultiplyAdd<AOrder::kColumnMajor, 16>(
          AsFloats(chunk.v[full]) + dim * 16 + row, 16, panel, kChunkFloats, chunk.Count(full));
    }
    tile.Store(to, 16, o_stride);
  }
};

// Beyond this the largest score of a chunk, less its own rounded self, need not be near 0 any more
// (Exponentials multiplies and subtracts in one rounding), and 2^x of it is garbage. Half a unit is
// what the rounding of 2^24 leaves.
inline constexpr float kHugeScore = 0x1p24f;

// Whether any of a strip's maxima, in units of log2, is huge. Strip by strip: the strips of a tile
// may be of different rows, and a row's bits depend on no other row.
HWY_INLINE bool AnyHuge(const VF* maximum, VF c) {
  const VF limit = hn::Set(DF(), kHugeScore);
  auto huge = hn::Gt(hn::Abs(hn::Mul(maximum[0], c)), limit);
  for (size_t v = 1; v < kStripVecs; ++v)
    huge = hn::Or(huge, hn::Gt(hn::Abs(hn::Mul(maximum[v], c)), limit));
  return !hn::AllFalse(DF(), huge);
}

// Scores of a strip times c.
HWY_NOINLINE void ScaleScores(size_t tokens, VF c, float* scores) {
  for (size_t i = 0; i < tokens * 16; i += kVecFloats)
    hn::Store(hn::Mul(hn::Load(DF(), scores + i), c), DF(), scores + i);
}

// Scores become 2^(c * score - maximum); returns their sum per query in sum[kStripVecs].
HWY_NOINLINE void Exponentials(float* HWY_RESTRICT scores, size_t tokens, VF c, const VF* maximum,
                               VF* sum) {
  VF negative[kStripVecs], total[kStripVecs];
  EQ_UNROLL
  for (size_t v = 0; v < kStripVecs; ++v) {
    negative[v] = hn::Neg(maximum[v]);
    total[v] = hn::Zero(DF());
  }
  for (size_t i = 0; i < tokens; ++i) {
    EQ_UNROLL
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = scores + i * 16 + v * kVecFloats;
      const VF p = Exp2(DF(), hn::MulAdd(hn::Load(DF(), at), c, negative[v]));
      hn::Store(p, DF(), at);
      total[v] = hn::Add(total[v], p);
    }
  }
  EQ_UNROLL
  for (size_t v = 0; v < kStripVecs; ++v) sum[v] = total[v];
}

// An operand type of the chunk update (attention_chunk.cc), as IntOperand is.
class F32Operand {
 public:
  // q: the group's query strips from its `first`, as f32.
  F32Operand(const QueryGroup& group, const Chunk& chunk, const std::byte* q, size_t first = 0)
      : chunk_(chunk),
        memory_(group.memory),
        q_(AsFloats(q)),
        first_(first),
        head_dim_(static_cast<size_t>(group.args.head_dim)),
        score_scale_(group.args.scale * kLog2E) {}

  static constexpr size_t kPassStrips = kTileStrips, kTilesOfStrip = kStripTiles;
  // Weights are relative to the running maximum.
  static constexpr bool kOwnBase = false;

  // To multiply scores by; 1: they are in units of log2.
  float ScoreScale() const { return score_scale_; }

  // Not inlined, here and below: each phase gets the registers to itself, and shows in a profile.
  template <size_t kStrips>
  HWY_NOINLINE void Scores(size_t strip, VF* maximum, Toucher* touch) const {
    for (size_t v = 0; v < kStrips * kStripVecs; ++v)
      maximum[v] = hn::Set(DF(), -std::numeric_limits<float>::infinity());
    const size_t q_stride = Groups() * 256;
    const float* const q = q_ + (strip - first_) * q_stride;
    float* scores = memory_.scores;
    for (size_t i = 0; i < chunk_.size; ++i) {
      LineToucher lines = touch->Keys(i);
      const ScoreTile<kStrips> tile{
          AsFloats(chunk_.k[i]), q, scores, maximum, q_stride, head_dim_, touch, &lines};
      if (HWY_LIKELY(chunk_.Count(i) == 16)) {
        ForFixedRowTiles<16>(tile);
      } else {
        ForTailRows(chunk_.Count(i), tile);
      }
      scores += 256;
    }
  }

  // Whether the scores of a strip must be multiplied by c before anything else.
  static bool MustScale(const VF* maximum, VF c) { return AnyHuge(maximum, c); }

  // slot: of the scores' memory.
  void Weights(size_t slot, VF c, const VF* base, VF* sum) const {
    Exponentials(memory_.scores + slot * kChunkFloats, chunk_.tokens, c, base, sum);
  }

  // factor: of the output so far, null where it is 0.
  template <size_t kStrips>
  HWY_NOINLINE void Outputs(size_t strip, const VF* factor, const VF* /*share*/,
                            Toucher* touch) const {
    const size_t groups = Groups(), o_stride = groups * 256;
    float* const o = memory_.o + strip * o_stride;
    for (size_t i = 0; i < groups; ++i) {
      LineToucher lines = touch->Values(i);
      const OutputTile<kStrips> tile{chunk_, i * 16,   memory_.scores, o,
                                     factor, o_stride, touch,          &lines};
      if (HWY_LIKELY(head_dim_ - i * 16 >= 16)) {
        ForFixedRowTiles<16>(tile);
      } else {
        ForFixedRowTiles<8>(tile);
      }
    }
  }

 private:
  size_t Groups() const { return (head_dim_ + 15) / 16; }

  const Chunk& chunk_;
  const GroupMemory& memory_;
  const float* const q_;
  const size_t first_, head_dim_;
  const float score_scale_;
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_F32_INL_H_
