#include "equitile/kernel/attention_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "equitile/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/attention_row.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/exp-inl.h"
#include "equitile/kernel/gemm-inl.h"
#include "equitile/kernel/pack-inl.h"

#ifndef EQUITILE_KERNEL_ATTENTION_ROW_ONCE_
#define EQUITILE_KERNEL_ATTENTION_ROW_ONCE_
namespace equitile {

// The chunk's scores for one query strip (8 KiB), the query strip and its output (8 KiB each at
// head_dim 128) share L1. Chunks are a function of the row's own kv list, so that its bits depend
// on nothing else. docs/design/0003-attention.md has what was tried.
inline constexpr size_t kChunkFloats = kChunkStrips * 16 * 16;  // scores of one query strip

// Below every finite score in units of log2, yet finite: the difference of two running maxima is
// never inf - inf.
inline constexpr float kLowestScore = -1e38f;

// Up to kChunkStrips strips of keys and values. Only the last may hold less than 16 tokens: it ends
// the sequence, or the means.
struct Chunk {
  size_t size = 0;
  size_t tokens = 0;
  int64_t first = 0;  // strips of kept blocks before it
  const float* k[kChunkStrips];
  const float* v[kChunkStrips];
  int64_t position[kChunkStrips];  // of each strip's first token
  const float* log2_count =
      nullptr;  // [tokens] of tokens that each mean stands for; null: no means

  void Add(const float* k_strip, const float* v_strip, int64_t first, int64_t count) {
    k[size] = k_strip;
    v[size] = v_strip;
    position[size++] = first;
    tokens += static_cast<size_t>(count);
  }
  size_t Count(size_t strip) const { return std::min<size_t>(16, tokens - 16 * strip); }
};

// Touches memory that will be needed soon, a few cache lines per register tile.
class Prefetcher {
 public:
  // The ranges [row, row + row_bytes), spread over about `steps` steps. Views the list.
  void Start(std::span<const void* const> rows, int64_t row_bytes, int64_t steps) {
    rows_ = rows;
    row_bytes_ = row_bytes;
    offset_ = 0;
    const int64_t lines = static_cast<int64_t>(rows.size()) * CeilDiv(row_bytes, kLineBytes);
    lines_per_step_ = CeilDiv(lines, std::max<int64_t>(steps, 1));
  }
  void Step() {
    for (int64_t i = 0; i < lines_per_step_ && !rows_.empty(); ++i) {
      __builtin_prefetch(static_cast<const char*>(rows_[0]) + offset_, 0, 2);
      offset_ += kLineBytes;
      if (offset_ >= row_bytes_) {
        rows_ = rows_.subspan(1);
        offset_ = 0;
      }
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  std::span<const void* const> rows_;
  int64_t row_bytes_ = 0, offset_ = 0, lines_per_step_ = 0;
};

// Packed strips that come after the present chunk. Each query strip brings its share of them to L2
// while it multiplies, a line or so per 16 steps: one at a time they go unnoticed, a dozen at once
// would hold up the loads that are waited for.
struct Ahead {
  size_t size = 0;
  const float* strips[2][kChunkStrips];  // keys, values
  size_t pass = 0, passes = 1;  // this query strip, or pair of them, among those of the group
  size_t strip_bytes = 0;

  void Add(const float* k, const float* v) {
    strips[0][size] = k;
    strips[1][size++] = v;
  }
  // Where the share of part `part` of `parts` of this pass begins, among keys (0) or values (1).
  const char* At(size_t part, size_t parts, size_t kv) const {
    const size_t at = (part * passes + pass) * (size * strip_bytes / (parts * passes));
    return reinterpret_cast<const char*>(strips[kv][at / strip_bytes]) + at % strip_bytes;
  }
};

// Walks the strips that are to be fetched, a chunk before they are read, through the end of the row
// into the thread's next one.
class Lookout {
 public:
  // `last`: after the task's kv blocks come the next task's, not the same once more.
  Lookout(const RowTask& task, bool last) : task_(task), last_(last) {
    // The first chunk is here: it was fetched at the end of the row before.
    Ahead here;
    for (int64_t i = 0; i < kChunkStrips && block_ < task_.kv_blocks.size(); ++i)
      Step(here, nullptr);
  }

  // `count` strips further.
  void Advance(size_t count, Ahead& ahead) {
    for (size_t i = 0; i < count; ++i) Step(ahead, task_.soon);
  }

 private:
  void Step(Ahead& ahead, PrefetchRows* add) {
    const size_t own = task_.kv_blocks.size();
    if (in_block_ == 0) now_ = task_.upcoming(block_ >= own && !last_ ? block_ - own : block_, add);
    if (now_.size == 0) return;
    if (now_.strips.k != nullptr) ahead.Add(now_.strips.k[in_block_], now_.strips.v[in_block_]);
    if (++in_block_ < now_.size) return;
    in_block_ = 0;
    ++block_;
  }

  const RowTask& task_;
  const bool last_;
  size_t block_ = 0;
  int64_t in_block_ = 0;
  UpcomingBlock now_;
};

// Query strips that walk together: their numbers in the lane's order, from several blocks or a part
// of one.
struct StripGroup {
  int64_t size = 0;
  int64_t strip[kMaxBlockTokens / kStripTokens];
  int32_t row[kMaxBlockTokens / kStripTokens];  // of the call, that each belongs to

  int64_t FirstToken(int64_t i) const { return strip[i] * kStripTokens; }
  // Strips i, i + 1, ... that follow each other.
  int64_t Run(int64_t i) const {
    int64_t run = 1;
    while (i + run < size && strip[i + run] == strip[i] + run) ++run;
    return run;
  }
};

// The strips of the task's blocks, group by group.
class GroupReader {
 public:
  explicit GroupReader(const RowTask& task)
      : task_(task), most_(GroupStrips(task.args->head_dim)), left_(Strips(0)) {}

  bool AtEnd() const { return row_ == task_.rows.size(); }
  StripGroup Next() {
    StripGroup group;
    while (!AtEnd() && group.size < most_) {
      group.row[group.size] = task_.rows[row_];
      group.strip[group.size++] = left_.begin++;
      if (left_.empty()) left_ = Strips(++row_);
    }
    return group;
  }

 private:
  Range Strips(size_t row) const {
    if (row == task_.rows.size()) return {};
    const AttentionArgs& args = *task_.args;
    const Range tokens =
        args.grid.QBlockTokens(args.rows->rows[static_cast<size_t>(task_.rows[row])].q_block);
    return {tokens.begin / kStripTokens, CeilDiv(tokens.end, kStripTokens)};
  }

  const RowTask& task_;
  const int64_t most_;
  size_t row_ = 0;
  Range left_;  // of the row
};

// Chunks of a row that keeps so many blocks, at most.
constexpr int64_t ChunksOf(int64_t kept, const BlockGrid& grid) {
  return CeilDiv(kept * grid.block_tokens, kChunkStrips * kStripTokens);
}

// Scratch of one thread, cut into its parts.
struct RowScratch {
  RowScratch(float* base, const AttentionArgs& args) {
    const int64_t head_dim = args.head_dim;
    const int64_t group = GroupStrips(head_dim), strip = StripFloats(head_dim);
    q = base;
    o = q + group * strip;
    scores = o + group * strip;
    rows = scores + 2 * kChunkFloats;
    maximum = rows + kStripTokens * head_dim;
    sum = maximum + group * kStripTokens;
    means = sum + group * kStripTokens;
    parts = means + MeansFloats(args);
  }
  static int64_t Floats(const AttentionArgs& args) {
    const int64_t group = GroupStrips(args.head_dim);
    return 2 * group * StripFloats(args.head_dim) + 2 * kChunkFloats +
           kStripTokens * args.head_dim + 2 * group * kStripTokens + MeansFloats(args) +
           PartsFloats(args);
  }
  static int64_t MeansFloats(const AttentionArgs& args) {
    return args.tails.lanes.empty() ? 0 : 2 * kChunkStrips * StripPitch(args.head_dim);
  }
  static int64_t PartsFloats(const AttentionArgs& args) {
    if (args.masses == nullptr) return 0;
    int64_t longest = 0;
    for (int64_t row = 0; row < args.rows->Count(); ++row)
      longest = std::max(longest, std::ssize(args.rows->KvBlocks(row)));
    return GroupStrips(args.head_dim) * kStripTokens * (2 * ChunksOf(longest, args.grid) + longest);
  }
  float* q;        // [group] query strips
  float* o;        // [group][head_dim][16]: not yet divided by the sum
  float* scores;   // [2][chunk tokens][16]
  float* rows;     // [16][head_dim]: output on its way to another dtype
  float* maximum;  // [group][16], in units of log2
  float* sum;      // [group][16]
  float* means;    // a chunk's strips of keys, then of values, StripPitch apart; only with tails
  float* parts;    // [chunks][group][16] maxima, [chunks + kept][group][16] sums; only with masses
};

}  // namespace equitile
#endif  // EQUITILE_KERNEL_ATTENTION_ROW_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// Lines of the next chunk per 16 steps: what four query strips need, or nearly (a block of 64).
inline constexpr size_t kStripTiles =
    (16 + kTileRows - 1) / kTileRows;  // register tiles of 16 rows
inline constexpr size_t kAheadLines = HWY_MAX(size_t{1}, 16 / (kStripTiles * (4 / kTileStrips)));

// Goes through a share of the next chunk.
class AheadReader {
 public:
  AheadReader(const char* at, size_t passes)
      : at_(at), step_(HWY_MAX(64 * kAheadLines, 64 * 16 / (kStripTiles * passes))) {}
  EQ_TILE void Step() {
    EQ_UNROLL
    for (size_t i = 0; i < kAheadLines; ++i) __builtin_prefetch(at_ + 64 * i, 0, 2);
    at_ += step_;
  }

 private:
  const char* at_;
  size_t step_;
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
  Prefetcher* prefetch;
  AheadReader* ahead;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    prefetch->Step();
    Tile<kRows, kStrips> tile;
    tile.Zero();
    const float *a = k + row * 16, *panel = q;
    AheadReader reader = *ahead;
    for (size_t d = 16; d <= head_dim; d += 16, a += 256, panel += 256) {
      reader.Step();
      tile.template MultiplyAddFixed<AOrder::kRowMajor, 16, 16>(a, panel, q_stride);
    }
    *ahead = reader;
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
  Prefetcher* prefetch;
  AheadReader* ahead;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    prefetch->Step();
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
    AheadReader reader = *ahead;
    for (size_t i = 0; i < full; ++i, panel += 256) {
      reader.Step();
      tile.template MultiplyAddFixed<AOrder::kColumnMajor, 16, 16>(chunk.v[i] + dim * 16 + row,
                                                                   panel, kChunkFloats);
    }
    *ahead = reader;
    if (full < chunk.size) {
      tile.template MultiplyAdd<AOrder::kColumnMajor, 16>(chunk.v[full] + dim * 16 + row, 16, panel,
                                                          kChunkFloats, chunk.Count(full));
    }
    tile.Store(to, 16, o_stride);
  }
};

// Not inlined, here and below: each phase gets the registers to itself, and shows in a profile.
template <size_t kStrips>
HWY_NOINLINE void Scores(const Chunk& chunk, const Ahead& next, const float* q, size_t head_dim,
                         size_t strip_floats, float* scores, VF* maximum, Prefetcher* prefetch) {
  for (size_t v = 0; v < kStrips * kStripVecs; ++v)
    maximum[v] = hn::Set(DF(), -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < chunk.size; ++i) {
    AheadReader ahead(next.At(i, chunk.size, 0), next.passes);
    const ScoreTile<kStrips> tile{chunk.k[i],   q,        scores,   maximum,
                                  strip_floats, head_dim, prefetch, &ahead};
    if (HWY_LIKELY(chunk.Count(i) == 16)) {
      ForFixedRowTiles<16>(tile);
    } else {
      ForTailRows(chunk.Count(i), tile);
    }
    scores += 256;
  }
}

template <size_t kStrips>
HWY_NOINLINE void Outputs(const Chunk& chunk, const Ahead& next, const float* p, const VF* factor,
                          size_t head_dim, size_t strip_floats, float* o, Prefetcher* prefetch) {
  for (size_t dim = 0; dim < head_dim; dim += 16) {
    AheadReader ahead(next.At(dim, head_dim, 1), next.passes);
    const OutputTile<kStrips> tile{chunk, dim, p, o, factor, strip_floats, prefetch, &ahead};
    if (HWY_LIKELY(head_dim - dim >= 16)) {
      ForFixedRowTiles<16>(tile);
    } else {
      ForFixedRowTiles<8>(tile);
    }
  }
}

// Scores become log2-scaled with their bias added, and the maximum is taken again.
template <size_t kStrips>
void AddBias(const RowTask& task, const Chunk& chunk, const StripGroup& group, size_t strip,
             float score_scale, float* scores, VF* maximum) {
  const AttentionArgs& args = *task.args;
  const int32_t* q_order =
      args.q_order.empty() ? nullptr : args.q_order[static_cast<size_t>(task.lane)];
  const int32_t* kv_order =
      args.kv_order.empty() ? nullptr : args.kv_order[static_cast<size_t>(task.lane)];
  const float* base = args.bias.data + args.lanes.BatchOf(task.lane) * args.bias.batch_stride +
                      args.lanes.HeadOf(task.lane) * args.bias.head_stride;
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

// Takes the masses of the kept blocks for a group of query strips. A row's sum is known at its end
// only: until then this keeps, per chunk and query, the maximum of that moment and the sum of
// exponentials of each block's part of the chunk.
class MassTaker {
 public:
  // scratch: see RowScratch::parts.
  MassTaker(const RowTask& task, const StripGroup& group, float* scratch)
      : task_(task),
        group_(group),
        strips_per_block_(task.args->grid.block_tokens / kStripTokens),
        maxima_(scratch),
        parts_(scratch +
               ChunksOf(std::ssize(task.kv_blocks), task.args->grid) * group.size * kStripTokens) {}

  // The exponentials of a chunk of kept blocks for the strip'th of the group, [tokens][16], and
  // their maximum.
  HWY_NOINLINE void Add(const Chunk& chunk, int64_t strip, const float* p, const VF* maximum) {
    float* const to = Maximum(chunk.first, strip);
    for (size_t v = 0; v < kStripVecs; ++v) hn::Store(maximum[v], DF(), to + v * kVecFloats);
    const int64_t end = chunk.first + static_cast<int64_t>(chunk.size);
    for (int64_t begin = chunk.first, part_end; begin < end; begin = part_end) {
      part_end = std::min(end, (begin / strips_per_block_ + 1) * strips_per_block_);
      const int64_t token = (begin - chunk.first) * kStripTokens;
      const int64_t tokens =
          std::min((part_end - begin) * kStripTokens, static_cast<int64_t>(chunk.tokens) - token);
      VF sum[kStripVecs];
      for (size_t v = 0; v < kStripVecs; ++v) sum[v] = hn::Zero(DF());
      const float* HWY_RESTRICT from = p + token * 16;
      for (int64_t t = 0; t < tokens; ++t, from += 16) {
        for (size_t v = 0; v < kStripVecs; ++v)
          sum[v] = hn::Add(sum[v], hn::Load(DF(), from + v * kVecFloats));
      }
      float* const part = Part(chunk.first, begin / strips_per_block_, strip);
      for (size_t v = 0; v < kStripVecs; ++v) hn::Store(sum[v], DF(), part + v * kVecFloats);
    }
  }

  // Adds the masses of the strip'th of the group to its row's. The strips of a row come one after
  // the other, however they are grouped.
  HWY_NOINLINE void Finish(int64_t strip, const float* maximum, const float* sum) const {
    const AttentionArgs& args = *task_.args;
    const auto row = static_cast<size_t>(group_.row[strip]);
    const Range queries = args.grid.QBlockTokens(args.rows->rows[row].q_block);
    const auto kept = std::ssize(task_.kv_blocks);
    float* const masses = args.masses + args.rows->first[row];
    if (group_.FirstToken(strip) == queries.begin) std::fill_n(masses, kept, 0.0f);

    HWY_ALIGN float share[kStripTokens];  // of a query; those beyond the end have none
    for (int64_t t = 0; t < kStripTokens; ++t) {
      const bool counts = group_.FirstToken(strip) + t < queries.end && sum[t] != 0.0f;
      share[t] = counts ? 1.0f / (sum[t] * static_cast<float>(queries.size())) : 0.0f;
    }
    VF factor[kStripVecs];
    for (int64_t block = 0, chunk = -1; block < kept; ++block) {
      const int64_t begin = block * strips_per_block_;
      const int64_t end =
          begin +
          CeilDiv(args.grid.KvBlockTokens(task_.kv_blocks[static_cast<size_t>(block)]).size(),
                  kStripTokens);
      for (int64_t at = begin; at < end; at = (at / kChunkStrips + 1) * kChunkStrips) {
        if (at / kChunkStrips != chunk) {
          chunk = at / kChunkStrips;
          for (size_t v = 0; v < kStripVecs; ++v) {
            const VF then = hn::Load(DF(), Maximum(at, strip) + v * kVecFloats),
                     now = hn::Load(DF(), maximum + v * kVecFloats);
            factor[v] =
                hn::Mul(Exp2(DF(), hn::Sub(then, now)), hn::Load(DF(), share + v * kVecFloats));
          }
        }
        const float* const part = Part(at, block, strip);
        VF mass = hn::Mul(hn::Load(DF(), part), factor[0]);
        for (size_t v = 1; v < kStripVecs; ++v)
          mass = hn::MulAdd(hn::Load(DF(), part + v * kVecFloats), factor[v], mass);
        masses[block] += hn::GetLane(hn::SumOfLanes(DF(), mass));
      }
    }
  }

 private:
  // Of the chunk that holds a strip of the row's kept blocks.
  float* Maximum(int64_t kv_strip, int64_t strip) const {
    return maxima_ + (kv_strip / kChunkStrips * group_.size + strip) * kStripTokens;
  }
  // Of that chunk and a block, by its number in the row's list. From part to part the chunk, the
  // block or both go on by one, so their sum is a place of its own.
  float* Part(int64_t kv_strip, int64_t block, int64_t strip) const {
    return parts_ + ((kv_strip / kChunkStrips + block) * group_.size + strip) * kStripTokens;
  }

  const RowTask& task_;
  const StripGroup& group_;
  const int64_t strips_per_block_;
  float *const maxima_, *const parts_;
};

// One chunk of keys and values for kStrips query strips, beginning with the strip'th of the group.
template <size_t kStrips>
void AddChunk(const RowTask& task, const Chunk& chunk, const Ahead& next, bool first_chunk,
              const StripGroup& group, size_t strip, const RowScratch& scratch,
              Prefetcher* prefetch, MassTaker* masses) {
  constexpr size_t kVecs = kStrips * kStripVecs;
  const auto head_dim = static_cast<size_t>(task.args->head_dim);
  const auto strip_floats = static_cast<size_t>(StripFloats(task.args->head_dim));
  const float score_scale = task.args->scale * kLog2E;

  VF maximum[kVecs];
  Scores<kStrips>(chunk, next, scratch.q + strip * strip_floats, head_dim, strip_floats,
                  scratch.scores, maximum, prefetch);
  const bool biased = task.args->bias.data != nullptr || chunk.log2_count != nullptr;
  if (chunk.log2_count != nullptr) {
    AddCounts<kStrips>(chunk, score_scale, scratch.scores, maximum);
  } else if (biased) {
    AddBias<kStrips>(task, chunk, group, strip, score_scale, scratch.scores, maximum);
  }

  VF factor[kVecs];
  for (size_t s = 0; s < kStrips; ++s) {
    VF sum[kStripVecs];
    VF* m = maximum + s * kStripVecs;
    float* const scores = scratch.scores + s * kChunkFloats;
    VF c = hn::Set(DF(), biased ? 1.0f : score_scale);
    if (HWY_UNLIKELY(!biased && AnyHuge(m, c))) {
      ScaleScores(chunk.tokens, c, scores, m);
      c = hn::Set(DF(), 1.0f);
    }
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = scratch.maximum + (strip + s) * 16 + v * kVecFloats;
      const VF old = hn::Load(DF(), at);
      m[v] = hn::Max(old, hn::Mul(m[v], c));
      factor[s * kStripVecs + v] = Exp2(DF(), hn::Sub(old, m[v]));
      hn::Store(m[v], DF(), at);
    }
    Exponentials(scores, chunk.tokens, c, m, sum);
    if (masses != nullptr) masses->Add(chunk, static_cast<int64_t>(strip + s), scores, m);
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = scratch.sum + (strip + s) * 16 + v * kVecFloats;
      hn::Store(hn::MulAdd(hn::Load(DF(), at), factor[s * kStripVecs + v], sum[v]), DF(), at);
    }
  }

  Outputs<kStrips>(chunk, next, scratch.scores, first_chunk ? nullptr : factor, head_dim,
                   strip_floats, scratch.o + strip * strip_floats, prefetch);
}

// Whether all rows start where a vector may be streamed to.
bool Aligned(const View& out) {
  constexpr int64_t kFloats = static_cast<int64_t>(kTransposeFloats);
  const bool strides =
      out.Stride(0) % kFloats == 0 && out.Stride(1) % kFloats == 0 && out.Stride(2) % kFloats == 0;
  return strides &&
         reinterpret_cast<uintptr_t>(out.Data()) % (kTransposeFloats * sizeof(float)) == 0;
}

// Divides by the sum and writes 16 queries, or fewer at the end, to their tokens.
template <class T>
void WriteStrip(const RowTask& task, const float* o, const float* factor, int64_t first_q,
                int64_t count, float* rows) {
  const AttentionArgs& args = *task.args;
  const View& out = args.out;
  const int32_t* order =
      args.q_order.empty() ? nullptr : args.q_order[static_cast<size_t>(task.lane)];
  T* base = static_cast<T*>(out.Data()) + args.lanes.BatchOf(task.lane) * out.Stride(0) +
            args.lanes.HeadOf(task.lane) * out.Stride(2);
  const int64_t dim_stride = out.Stride(3);
  const bool plain = std::is_same_v<T, float> && dim_stride == 1;
  const bool stream = plain && args.out.Elements() >= kStreamFloats && Aligned(out);
  const bool in_place = plain && !stream;
  T* to[kStripTokens];
  float* row[kStripTokens];
  for (int64_t t = 0; t < kStripTokens; ++t) {
    const int64_t position = first_q + t;
    to[t] = t < count ? base + (order ? order[position] : position) * out.Stride(1) : nullptr;
    row[t] = in_place && t < count ? reinterpret_cast<float*>(to[t]) : rows + t * args.head_dim;
  }
  ColumnsToRows(o, factor, static_cast<size_t>(args.head_dim), row);
  if (in_place) return;
  if (stream) {
    const DT d;
    for (int64_t t = 0; t < count; ++t) {
      auto* line = reinterpret_cast<float*>(to[t]);
      for (int64_t i = 0; i < args.head_dim; i += kTransposeFloats)
        hn::Stream(hn::Load(d, row[t] + i), d, line + i);
    }
    return;
  }
  for (int64_t t = 0; t < count; ++t) {
    if (dim_stride == 1) {
      FromFloats(row[t], static_cast<size_t>(args.head_dim), to[t]);
    } else {
      for (int64_t i = 0; i < args.head_dim; ++i) to[t][i * dim_stride] = FromFloat<T>(row[t][i]);
    }
  }
}

// In double, so that the rounding to f32 hides which libm computed it.
float LogSumExp(float maximum, float sum) {
  const double value =
      static_cast<double>(maximum) * 0.6931471805599453 + std::log(static_cast<double>(sum));
  return sum == 0.0f ? -std::numeric_limits<float>::infinity() : static_cast<float>(value);
}

// The same for output that has a place per strip.
void WriteToTable(const RowTask& task, const float* o, const float* factor, const float* lse,
                  int64_t first_q, int64_t count, float* rows) {
  const AttentionArgs& args = *task.args;
  const OutputTable& table = args.out_strips;
  const OutputStrip& to = table.At(task.lane, first_q / kStripTokens);
  float* row[kStripTokens];
  for (int64_t t = 0; t < kStripTokens; ++t)
    row[t] = t < count && !table.merge ? to.out + t * to.stride : rows + t * args.head_dim;
  ColumnsToRows(o, factor, static_cast<size_t>(args.head_dim), row);
  for (int64_t t = 0; t < count; ++t) {
    if (table.merge) {
      MergePartial(to.out + t * to.stride, to.lse + t, row[t], lse + t, 1, args.head_dim);
    } else {
      to.lse[t] = lse[t];
    }
  }
}

void FinishStrip(const RowTask& task, const float* o, const float* maximum, const float* sum,
                 int64_t first_q, float* rows) {
  const AttentionArgs& args = *task.args;
  const int64_t count = std::min(kStripTokens, args.grid.q_tokens - first_q);
  HWY_ALIGN float factor[kStripTokens];
  for (int64_t t = 0; t < kStripTokens; ++t) factor[t] = sum[t] == 0.0f ? 0.0f : 1.0f / sum[t];
  if (args.out_strips.Used()) {
    float lse[kStripTokens];
    for (int64_t t = 0; t < kStripTokens; ++t) lse[t] = LogSumExp(maximum[t], sum[t]);
    WriteToTable(task, o, factor, lse, first_q, count, rows);
    return;
  }
  switch (args.out.dtype()) {
    case DType::kF32:
      WriteStrip<float>(task, o, factor, first_q, count, rows);
      break;
    case DType::kBF16:
      WriteStrip<Bf16>(task, o, factor, first_q, count, rows);
      break;
    case DType::kF16:
      WriteStrip<F16>(task, o, factor, first_q, count, rows);
      break;
  }
  if (args.lse == nullptr) return;
  const int32_t* order =
      args.q_order.empty() ? nullptr : args.q_order[static_cast<size_t>(task.lane)];
  float* lse = args.lse + task.lane * args.grid.q_tokens;
  for (int64_t t = 0; t < count; ++t) {
    lse[order ? order[first_q + t] : first_q + t] = LogSumExp(maximum[t], sum[t]);
  }
}

// The strips of the kept blocks, chunk by chunk.
class ChunkReader {
 public:
  explicit ChunkReader(const RowTask& task)
      : task_(task), strips_per_block_(task.args->grid.block_tokens / kStripTokens) {}

  bool AtEnd() const { return block_ == task_.kv_blocks.size(); }
  // Empty at the end.
  Chunk Next() {
    const int64_t kv_tokens = task_.args->grid.kv_tokens;
    Chunk chunk;
    chunk.first = read_;
    while (chunk.size < static_cast<size_t>(kChunkStrips) && block_ < task_.kv_blocks.size()) {
      if (in_block_ == 0) strips_ = task_.strips(task_.kv_blocks[block_]);
      const int64_t position =
          (task_.kv_blocks[block_] * strips_per_block_ + in_block_) * kStripTokens;
      chunk.Add(strips_.k[in_block_], strips_.v[in_block_], position,
                std::min(kStripTokens, kv_tokens - position));
      if (++in_block_ == strips_per_block_ || position + kStripTokens >= kv_tokens) {
        in_block_ = 0;
        ++block_;
      }
    }
    read_ += static_cast<int64_t>(chunk.size);
    return chunk;
  }

 private:
  const RowTask& task_;
  const int64_t strips_per_block_;
  int64_t read_ = 0;  // strips
  size_t block_ = 0;
  int64_t in_block_ = 0;
  BlockStrips strips_;  // of the block
};

// The skipped blocks, chunk by chunk: their means side by side in strips of the thread's own. Only
// theirs: no time goes into means that do not count, and nothing that is in them (an infinite sum,
// a NaN, nothing at all) reaches the row.
class MeansReader {
 public:
  // scratch: see RowScratch::means.
  MeansReader(const RowTask& task, float* scratch)
      : task_(task),
        pitch_(StripPitch(task.args->head_dim)),
        k_(scratch),
        v_(scratch + kChunkStrips * pitch_),
        log2_full_(Log2Count(0)),
        log2_last_(Log2Count(task.args->grid.KvBlocks() - 1)) {}

  // Empty at the end.
  Chunk Next() {
    const auto count =
        std::min<int64_t>(kChunkStrips * kStripTokens, std::ssize(task_.skipped) - next_);
    for (int64_t i = 0; i < count; ++i) Copy(task_.skipped[static_cast<size_t>(next_ + i)], i);
    next_ += count;
    Chunk chunk;
    for (int64_t i = 0; i < count; i += kStripTokens) {
      const int64_t at = i / kStripTokens * pitch_;
      chunk.Add(k_ + at, v_ + at, 0, std::min(kStripTokens, count - i));
    }
    chunk.log2_count = log2_count_;
    return chunk;
  }

 private:
  void Copy(int64_t block, int64_t to) {
    const int64_t at = to / kStripTokens * pitch_ + to % kStripTokens * 16;
    CopyRow(task_.means.k + block * task_.means.stride, k_ + at);
    CopyRow(task_.means.v + block * task_.means.stride, v_ + at);
    log2_count_[to] = block == task_.args->grid.KvBlocks() - 1 ? log2_last_ : log2_full_;
  }
  // To one token of a strip; dims beyond head_dim are not read.
  void CopyRow(const float* HWY_RESTRICT from, float* HWY_RESTRICT to) const {
    const DT d;
    const auto head_dim = static_cast<size_t>(task_.args->head_dim);
    for (size_t i = 0; i < head_dim; i += kTransposeFloats)
      hn::StoreU(hn::LoadU(d, from + i), d, to + i / 16 * 256 + i % 16);
  }
  // In double, so that the rounding to f32 hides which libm computed it.
  float Log2Count(int64_t block) const {
    const auto tokens = static_cast<double>(task_.args->grid.KvBlockTokens(block).size());
    return static_cast<float>(std::log2(tokens));
  }

  const RowTask& task_;
  const int64_t pitch_;
  float *const k_, *const v_;
  const float log2_full_, log2_last_;  // of the tokens of a block, of the last one
  int64_t next_ = 0;
  float log2_count_[kChunkStrips * kStripTokens];
};

void LoadQueries(const RowTask& task, const StripGroup& group, float* q) {
  const AttentionArgs& args = *task.args;
  const int64_t strip_floats = StripFloats(args.head_dim);
  if (args.q.IsStrips()) {
    for (int64_t s = 0; s < group.size; ++s) {
      const float* strip = args.q.strips.At(task.lane, group.strip[s]);
      std::copy(strip, strip + strip_floats, q + s * strip_floats);
    }
    return;
  }
  for (int64_t s = 0, run; s < group.size; s += run) {
    run = group.Run(s);
    PackStrips({.layout = StripLayout::kQuery,
                .source = &args.q,
                .lanes = args.lanes,
                .lane = task.lane,
                .tokens = args.grid.q_tokens,
                .head_dim = args.head_dim,
                .token_at_position =
                    args.q_order.empty() ? nullptr : args.q_order[static_cast<size_t>(task.lane)],
                .strips = {group.strip[s], group.strip[s] + run}},
               q + s * strip_floats);
  }
}

// The query strips of a group walk a chunk one after the other.
void WalkChunk(const RowTask& task, const Chunk& chunk, Ahead& ahead, bool first_chunk,
               const StripGroup& group, const RowScratch& scratch, Prefetcher& prefetch,
               MassTaker* masses) {
  const auto size = static_cast<size_t>(group.size);
  size_t s = 0;
  for (; s + kTileStrips <= size; s += kTileStrips, ++ahead.pass)
    AddChunk<kTileStrips>(task, chunk, ahead, first_chunk, group, s, scratch, &prefetch, masses);
  for (; s < size; ++s, ++ahead.pass)
    AddChunk<1>(task, chunk, ahead, first_chunk, group, s, scratch, &prefetch, masses);
  if (task.tick) task.tick();
}

// `last`: nothing of the task comes after this group.
void ComputeGroup(const RowTask& task, const StripGroup& group, bool last,
                  const RowScratch& scratch) {
  const AttentionArgs& args = *task.args;
  const int64_t strip_floats = StripFloats(args.head_dim);
  LoadQueries(task, group, scratch.q);
  std::fill(scratch.maximum, scratch.maximum + group.size * kStripTokens, kLowestScore);
  std::fill(scratch.sum, scratch.sum + group.size * kStripTokens, 0.0f);
  if (task.kv_blocks.empty() && task.skipped.empty())
    std::fill(scratch.o, scratch.o + group.size * strip_floats, 0.0f);

  Prefetcher prefetch;
  MassTaker masses(task, group, scratch.parts);
  const int64_t passes = CeilDiv(group.size, static_cast<int64_t>(kTileStrips));
  bool first_chunk = true;
  ChunkReader reader(task);
  Lookout lookout(task, last);
  for (Chunk chunk = reader.Next(); chunk.size > 0; chunk = reader.Next()) {
    Ahead ahead;
    ahead.passes = static_cast<size_t>(passes);
    ahead.strip_bytes = static_cast<size_t>(strip_floats) * sizeof(float);
    task.soon->rows.clear();
    // Not earlier: what is touched in the last chunk is still in L2 when the thread's next row
    // begins.
    if (reader.AtEnd() && last) task.next_rows(task.soon);
    lookout.Advance(chunk.size, ahead);
    if (ahead.size == 0) ahead.Add(chunk.k[0], chunk.v[0]);
    prefetch.Start(task.soon->rows, task.soon->row_bytes,
                   passes * static_cast<int64_t>(kStripTiles) *
                       (static_cast<int64_t>(chunk.size) + CeilDiv(args.head_dim, 16)));
    WalkChunk(task, chunk, ahead, first_chunk, group, scratch, prefetch,
              args.masses != nullptr ? &masses : nullptr);
    first_chunk = false;
  }
  MeansReader means(task, scratch.means);
  for (Chunk chunk = means.Next(); chunk.size > 0; chunk = means.Next()) {
    Ahead ahead;  // nothing: the means were just written
    ahead.passes = static_cast<size_t>(passes);
    ahead.strip_bytes = static_cast<size_t>(strip_floats) * sizeof(float);
    ahead.Add(chunk.k[0], chunk.v[0]);
    WalkChunk(task, chunk, ahead, first_chunk, group, scratch, prefetch, nullptr);
    first_chunk = false;
  }
  for (int64_t s = 0; s < group.size; ++s) {
    FinishStrip(task, scratch.o + s * strip_floats, scratch.maximum + s * kStripTokens,
                scratch.sum + s * kStripTokens, group.FirstToken(s), scratch.rows);
    if (args.masses != nullptr) {
      masses.Finish(s, scratch.maximum + s * kStripTokens, scratch.sum + s * kStripTokens);
    }
  }
}

void ComputeRowsT(const RowTask& task, float* base) {
  const RowScratch scratch(base, *task.args);
  for (GroupReader reader(task); !reader.AtEnd();) {
    const StripGroup group = reader.Next();
    ComputeGroup(task, group, reader.AtEnd(), scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(ComputeRowsT);
}  // namespace

int64_t RowScratchFloats(const AttentionArgs& args) { return RowScratch::Floats(args); }

void ComputeRows(const RowTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ComputeRowsT)(task, scratch);
}

}  // namespace equitile
#endif  // HWY_ONCE
