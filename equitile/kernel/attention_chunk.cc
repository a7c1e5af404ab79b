#include <limits>

#include "equitile/kernel/attention_group.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/attention_chunk.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/attention_masses-inl.h"
#include "equitile/kernel/exp-inl.h"
#include "equitile/kernel/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

inline const float* AsFloats(const std::byte* strip) {
  return reinterpret_cast<const float*>(strip);
}

inline constexpr size_t kStripTiles =
    (16 + kTileRows - 1) / kTileRows;  // register tiles of 16 rows

// Goes through a part of packed strips, a line or so per 16 steps over k: one at a time they go
// unnoticed, a dozen at once would hold up the loads that are waited for.
class LineToucher {
 public:
  // passes: query strips, or pairs of them, that share the work.
  LineToucher(const std::byte* at, size_t passes)
      : at_(at), step_(HWY_MAX(64 * kLines, 64 * 16 / (kStripTiles * passes))) {}
  EQ_TILE void Step() {
    EQ_UNROLL
    for (size_t i = 0; i < kLines; ++i) __builtin_prefetch(at_ + 64 * i, 0, 2);
    at_ += step_;
  }

 private:
  // What four query strips need, or nearly (a block of 64).
  static constexpr size_t kLines = HWY_MAX(size_t{1}, 16 / (kStripTiles * (4 / kTileStrips)));
  const std::byte* at_;
  size_t step_;
};

// Touches what the thread reads next, while the passes of a group over a chunk multiply.
class Toucher {
 public:
  Toucher(const NextReads& next, const Chunk& chunk, size_t passes, int64_t head_dim)
      : passes_(passes),
        strip_bytes_(static_cast<size_t>(StripBytes(head_dim))),
        row_(next.rows.data()),
        rows_end_(row_ + next.rows.size()),
        row_bytes_(next.row_bytes),
        strips_(next.strips > 0 ? next.strips : 1),
        k_(next.strips > 0 ? next.k : chunk.k),
        v_(next.strips > 0 ? next.v : chunk.v) {
    const auto tiles =
        static_cast<int64_t>(passes * kStripTiles * (chunk.size + CeilDiv(head_dim, 16)));
    const int64_t lines = std::ssize(next.rows) * CeilDiv(row_bytes_, kLineBytes);
    lines_per_tile_ = CeilDiv(lines, tiles);
  }

  void NextPass() { ++pass_; }

  // Once per register tile: rows.
  void Tile() {
    for (int64_t i = 0; i < lines_per_tile_ && row_ != rows_end_; ++i) {
      __builtin_prefetch(static_cast<const char*>(*row_) + offset_, 0, 2);
      offset_ += kLineBytes;
      if (offset_ >= row_bytes_) {
        ++row_;
        offset_ = 0;
      }
    }
  }

  // The lines of part `part` of `parts` of this pass.
  LineToucher Keys(size_t part, size_t parts) const { return Lines(k_, part, parts); }
  LineToucher Values(size_t part, size_t parts) const { return Lines(v_, part, parts); }

 private:
  static constexpr int64_t kLineBytes = 64;

  LineToucher Lines(const std::byte* const* strips, size_t part, size_t parts) const {
    const size_t at = (part * passes_ + pass_) * (strips_ * strip_bytes_ / (parts * passes_));
    return LineToucher(strips[at / strip_bytes_] + at % strip_bytes_, passes_);
  }

  const size_t passes_, strip_bytes_;
  size_t pass_ = 0;
  const void* const* row_;
  const void* const* const rows_end_;
  const int64_t row_bytes_;
  int64_t offset_ = 0, lines_per_tile_ = 0;
  const size_t strips_;
  const std::byte* const* const k_;
  const std::byte* const* const v_;
};

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

// Not inlined, here and below: each phase gets the registers to itself, and shows in a profile.
template <size_t kStrips>
HWY_NOINLINE void Scores(const Chunk& chunk, const float* q, size_t head_dim, float* scores,
                         VF* maximum, Toucher* touch) {
  for (size_t v = 0; v < kStrips * kStripVecs; ++v)
    maximum[v] = hn::Set(DF(), -std::numeric_limits<float>::infinity());
  const size_t q_stride = (head_dim + 15) / 16 * 256;
  for (size_t i = 0; i < chunk.size; ++i) {
    LineToucher lines = touch->Keys(i, chunk.size);
    const ScoreTile<kStrips> tile{
        AsFloats(chunk.k[i]), q, scores, maximum, q_stride, head_dim, touch, &lines};
    if (HWY_LIKELY(chunk.Count(i) == 16)) {
      ForFixedRowTiles<16>(tile);
    } else {
      ForTailRows(chunk.Count(i), tile);
    }
    scores += 256;
  }
}

template <size_t kStrips>
HWY_NOINLINE void Outputs(const Chunk& chunk, const float* p, const VF* factor, size_t head_dim,
                          float* o, Toucher* touch) {
  const size_t groups = (head_dim + 15) / 16, o_stride = groups * 256;
  for (size_t i = 0; i < groups; ++i) {
    LineToucher lines = touch->Values(i, groups);
    const OutputTile<kStrips> tile{chunk, i * 16, p, o, factor, o_stride, touch, &lines};
    if (HWY_LIKELY(head_dim - i * 16 >= 16)) {
      ForFixedRowTiles<16>(tile);
    } else {
      ForFixedRowTiles<8>(tile);
    }
  }
}

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

// Scores and maxima of a strip times c, rounded alike.
HWY_NOINLINE void ScaleScores(size_t tokens, VF c, float* scores, VF* maximum) {
  for (size_t i = 0; i < tokens * 16; i += kVecFloats)
    hn::Store(hn::Mul(hn::Load(DF(), scores + i), c), DF(), scores + i);
  for (size_t v = 0; v < kStripVecs; ++v) maximum[v] = hn::Mul(maximum[v], c);
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

// One chunk for kStrips query strips, beginning with the strip'th of the group.
template <size_t kStrips>
void AddToStrips(const QueryGroup& group, const Chunk& chunk, size_t strip, Toucher* touch) {
  constexpr size_t kVecs = kStrips * kStripVecs;
  const AttentionArgs& args = group.args;
  const GroupMemory& memory = group.memory;
  const auto head_dim = static_cast<size_t>(args.head_dim);
  const float score_scale = args.scale * kLog2E;

  VF maximum[kVecs];
  Scores<kStrips>(chunk,
                  AsFloats(memory.q + static_cast<int64_t>(strip) * StripBytes(args.head_dim)),
                  head_dim, memory.scores, maximum, touch);
  const bool scaled = args.bias.data != nullptr || chunk.log2_count != nullptr;
  if (chunk.log2_count != nullptr) {
    AddCounts<kStrips>(chunk, score_scale, memory.scores, maximum);
  } else if (scaled) {
    AddBias<kStrips>(group, chunk, strip, score_scale, memory.scores, maximum);
  }

  VF factor[kVecs];
  for (size_t s = 0; s < kStrips; ++s) {
    VF sum[kStripVecs];
    VF* m = maximum + s * kStripVecs;
    float* const scores = memory.scores + s * kChunkFloats;
    VF c = hn::Set(DF(), scaled ? 1.0f : score_scale);
    if (HWY_UNLIKELY(!scaled && AnyHuge(m, c))) {
      ScaleScores(chunk.tokens, c, scores, m);
      c = hn::Set(DF(), 1.0f);
    }
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = memory.maximum + (strip + s) * 16 + v * kVecFloats;
      const VF old = hn::Load(DF(), at);
      m[v] = hn::Max(old, hn::Mul(m[v], c));
      factor[s * kStripVecs + v] = Exp2(DF(), hn::Sub(old, m[v]));
      hn::Store(m[v], DF(), at);
    }
    Exponentials(scores, chunk.tokens, c, m, sum);
    if (args.masses != nullptr && chunk.log2_count == nullptr)
      Masses(group).Add(chunk, static_cast<int64_t>(strip + s), scores, m);
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = memory.sum + (strip + s) * 16 + v * kVecFloats;
      hn::Store(hn::MulAdd(hn::Load(DF(), at), factor[s * kStripVecs + v], sum[v]), DF(), at);
    }
  }

  Outputs<kStrips>(chunk, memory.scores, group.begun ? factor : nullptr, head_dim,
                   memory.o + static_cast<int64_t>(strip) * OutputStripFloats(args.head_dim),
                   touch);
}

// The strips of the group one after the other, two at a time where a register tile holds two.
void AddChunkT(const QueryGroup& group, const Chunk& chunk, const NextReads& next) {
  const auto size = static_cast<size_t>(group.size);
  Toucher touch(next, chunk, (size + kTileStrips - 1) / kTileStrips, group.args.head_dim);
  size_t s = 0;
  for (; s + kTileStrips <= size; s += kTileStrips, touch.NextPass())
    AddToStrips<kTileStrips>(group, chunk, s, &touch);
  for (; s < size; ++s, touch.NextPass()) AddToStrips<1>(group, chunk, s, &touch);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(AddChunkT);
}  // namespace

void AddChunk(QueryGroup& group, const Chunk& chunk, const NextReads& next) {
  HWY_DYNAMIC_DISPATCH(AddChunkT)(group, chunk, next);
  group.begun = true;
}

}  // namespace equitile
#endif  // HWY_ONCE
