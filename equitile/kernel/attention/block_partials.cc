#include "equitile/kernel/attention/block_partials.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/kernel/attention/block_means.h"
#include "equitile/kernel/rows/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/attention/block_partials.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/pack-inl.h"

#ifndef EQUITILE_KERNEL_BLOCK_PARTIALS_ONCE_
#define EQUITILE_KERNEL_BLOCK_PARTIALS_ONCE_
namespace equitile {

// Where the numbers of BlockPartials lie. Queries are the lanes of vectors, so that no sum or
// maximum over keys, blocks or dims needs a shuffle.
struct PartialsMemory {
  PartialsMemory(float* base, int64_t most_strips, int64_t kv_blocks, int64_t dim, int64_t v_dims)
      : blocks(static_cast<size_t>(kv_blocks)),
        head_dim(static_cast<size_t>(dim)),
        value_dims(static_cast<size_t>(v_dims)),
        q_stride(head_dim * 16),
        out_stride(blocks * value_dims * 16),
        q(base),
        scores(q + most_strips * dim * 16),
        whole(scores + most_strips * kScoresStride),
        top(whole + v_dims * 16),
        sum(top + most_strips * kv_blocks * 16),
        mean(sum + most_strips * kv_blocks * 16),
        out(mean + RoundUp(kv_blocks, 16) * 16) {}
  static int64_t Floats(int64_t most_strips, int64_t kv_blocks, int64_t dim, int64_t v_dims) {
    return most_strips * (dim * 16 + kScoresStride + kv_blocks * (2 + v_dims) * 16) + v_dims * 16 +
           RoundUp(kv_blocks, 16) * 16;
  }
  float* Top(size_t strip) const { return top + strip * blocks * 16; }
  float* Sum(size_t strip) const { return sum + strip * blocks * 16; }
  float* Out(size_t strip) const { return out + strip * out_stride; }

  // A line beyond a power of two: both strips of a tile are written at once.
  static constexpr size_t kScoresStride = kMaxBlockTokens * 16 + 16;

  size_t blocks, head_dim, value_dims, q_stride, out_stride;
  float* q;       // [strips][head_dim][16], times scale and log2 e
  float* scores;  // [strips][tokens of a block][16], then their exponentials
  float* whole;   // [value_dims][16]: outputs of one strip over all blocks
  float* top;     // [strips][blocks][16]: the largest score of a block
  float* sum;     // [strips][blocks][16]: of 2^(score - top)
  float* mean;    // [blocks][16]: scores of the blocks' means, of one strip
  float* out;     // [strips][blocks][value_dims][16]: of 2^(score - top) times values
};

}  // namespace equitile
#endif  // EQUITILE_KERNEL_BLOCK_PARTIALS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// scores[token][16 queries] = K Q^T for rows of one key strip and kStrips query strips.
template <size_t kStrips>
struct PartialScores {
  const float* k;
  const PartialsMemory& memory;
  const float* q;
  float* to;
  VF* top;  // [kStrips * kStripVecs]; null: not asked for

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    Tile<kRows, kStrips> tile;
    tile.Zero();
    const float *a = k + row * 16, *panel = q;
    for (size_t d = 16; d <= memory.head_dim; d += 16, a += 256, panel += 256)
      tile.template MultiplyAddFixed<AOrder::kRowMajor, 16, 16>(a, panel, memory.q_stride);
    if (memory.head_dim % 16 != 0)
      tile.template MultiplyAdd<AOrder::kRowMajor, 16>(a, 16, panel, memory.q_stride, 8);
    tile.Store(to + row * 16, 16, PartialsMemory::kScoresStride);
    if (top == nullptr) return;
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) {
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) top[v] = hn::Max(top[v], tile.c[r][v]);
    }
  }
};

// out[dim][16 queries] = V^T P over one block, for 16 dims or the last 8.
template <size_t kStrips>
struct PartialOutputs {
  const std::byte* v;  // the block's strips
  int64_t pitch;
  size_t tokens, dim;
  const PartialsMemory& memory;
  float* out;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    Tile<kRows, kStrips> tile;
    tile.Zero();
    const float* panel = memory.scores;
    const std::byte* strip = v;
    size_t left = tokens;
    for (; left >= 16; left -= 16, panel += 256, strip += pitch) {
      tile.template MultiplyAddFixed<AOrder::kColumnMajor, 16, 16>(
          reinterpret_cast<const float*>(strip) + dim * 16 + row, panel,
          PartialsMemory::kScoresStride);
    }
    if (left > 0) {
      tile.template MultiplyAdd<AOrder::kColumnMajor, 16>(
          reinterpret_cast<const float*>(strip) + dim * 16 + row, 16, panel,
          PartialsMemory::kScoresStride, left);
    }
    tile.Store(out + (dim + row) * 16, 16, memory.out_stride);
  }
};

// scores [tokens][16] become 2^(score - top); their sums.
HWY_NOINLINE void PartialWeights(float* HWY_RESTRICT scores, size_t tokens, const VF* top,
                                 float* HWY_RESTRICT sum) {
  VF total[kStripVecs];
  EQ_UNROLL
  for (size_t v = 0; v < kStripVecs; ++v) total[v] = hn::Zero(DF());
  for (size_t i = 0; i < tokens; ++i) {
    EQ_UNROLL
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* at = scores + i * 16 + v * kVecFloats;
      const VF p = Exp2(DF(), hn::Sub(hn::Load(DF(), at), top[v]));
      hn::Store(p, DF(), at);
      total[v] = hn::Add(total[v], p);
    }
  }
  EQ_UNROLL
  for (size_t v = 0; v < kStripVecs; ++v) hn::Store(total[v], DF(), sum + v * kVecFloats);
}

template <size_t kStrips>
HWY_NOINLINE void BlockScores(const PackedLane& lane, const PartialsMemory& memory, size_t strip,
                              Range positions, VF* top) {
  const int64_t pitch = StripPitch(lane.head_dim());
  for (int64_t at = positions.begin; at < positions.end; at += kStripTokens) {
    const auto tokens = static_cast<size_t>(std::min(kStripTokens, positions.end - at));
    const auto* k = reinterpret_cast<const float*>(lane.k() + at / kStripTokens * pitch);
    const PartialScores<kStrips> tile{k, memory, memory.q + strip * memory.q_stride,
                                      memory.scores + (at - positions.begin) * 16, top};
    if (HWY_LIKELY(tokens == 16)) {
      ForFixedRowTiles<16>(tile);
    } else {
      ForTailRows(tokens, tile);
    }
  }
}

template <size_t kStrips>
HWY_NOINLINE void BlockOutputs(const PackedLane& lane, const PartialsMemory& memory,
                               Range positions, float* out) {
  const int64_t pitch = StripPitch(lane.value_dims());
  const std::byte* v = lane.v() + positions.begin / kStripTokens * pitch;
  for (size_t dim = 0; dim < memory.value_dims; dim += 16) {
    const PartialOutputs<kStrips> tile{v,   pitch,  static_cast<size_t>(positions.size()),
                                       dim, memory, out};
    if (HWY_LIKELY(memory.value_dims - dim >= 16)) {
      ForFixedRowTiles<16>(tile);
    } else {
      ForFixedRowTiles<8>(tile);
    }
  }
}

// All blocks for kStrips query strips.
template <size_t kStrips>
void PartialsOf(const PackedLane& lane, const PartialsMemory& memory, size_t strip) {
  for (size_t block = 0; block < memory.blocks; ++block) {
    const Range positions = lane.grid().KvBlockTokens(static_cast<int64_t>(block));
    // Finite, so that a difference is never inf - inf where all scores are too small for f32.
    VF top[kStrips * kStripVecs];
    for (VF& v : top) v = hn::Set(DF(), std::numeric_limits<float>::lowest());
    BlockScores<kStrips>(lane, memory, strip, positions, top);
    for (size_t s = 0; s < kStrips; ++s) {
      PartialWeights(memory.scores + s * PartialsMemory::kScoresStride,
                     static_cast<size_t>(positions.size()), top + s * kStripVecs,
                     memory.Sum(strip + s) + block * 16);
      for (size_t v = 0; v < kStripVecs; ++v) {
        hn::Store(top[s * kStripVecs + v], DF(),
                  memory.Top(strip + s) + block * 16 + v * kVecFloats);
      }
    }
    BlockOutputs<kStrips>(lane, memory, positions,
                          memory.Out(strip) + block * memory.value_dims * 16);
  }
}

void ComputeT(const PackedLane& lane, const PartialsMemory& memory, const float* const* queries,
              size_t strips, float scale) {
  const VF to_log2 = hn::Set(DF(), scale * kLog2E);
  for (size_t s = 0; s < strips; ++s) {
    float* const q = memory.q + s * memory.q_stride;
    RowsToColumns(queries + s * 16, memory.head_dim, q);
    for (size_t i = 0; i < memory.q_stride; i += kVecFloats)
      hn::Store(hn::Mul(hn::Load(DF(), q + i), to_log2), DF(), q + i);
  }
  size_t strip = 0;
  for (; strip + kTileStrips <= strips; strip += kTileStrips)
    PartialsOf<kTileStrips>(lane, memory, strip);
  for (; strip < strips; ++strip) PartialsOf<1>(lane, memory, strip);
}

// sum[block] becomes the factor of out[block]; top[block] the block's share p. Returns the top of
// all blocks and 1 / the sum of all exponentials.
struct RowTotals {
  VF top[kStripVecs], inverse[kStripVecs];
};
HWY_NOINLINE RowTotals SharesOf(const PartialsMemory& memory, size_t strip) {
  float *const top = memory.Top(strip), *const sum = memory.Sum(strip);
  RowTotals totals;
  for (size_t v = 0; v < kStripVecs; ++v) {
    const size_t at = v * kVecFloats;
    VF most = hn::Load(DF(), top + at), all = hn::Zero(DF());
    for (size_t j = 1; j < memory.blocks; ++j)
      most = hn::Max(most, hn::Load(DF(), top + j * 16 + at));
    for (size_t j = 0; j < memory.blocks; ++j) {
      const VF weight = Exp2(DF(), hn::Sub(hn::Load(DF(), top + j * 16 + at), most));
      hn::Store(weight, DF(), top + j * 16 + at);
      all = hn::MulAdd(weight, hn::Load(DF(), sum + j * 16 + at), all);
    }
    const VF inverse = hn::Div(hn::Set(DF(), 1.0f), all);
    for (size_t j = 0; j < memory.blocks; ++j) {
      const VF factor = hn::Mul(hn::Load(DF(), top + j * 16 + at), inverse);
      hn::Store(hn::Mul(factor, hn::Load(DF(), sum + j * 16 + at)), DF(), top + j * 16 + at);
      hn::Store(factor, DF(), sum + j * 16 + at);
    }
    totals.top[v] = most;
    totals.inverse[v] = inverse;
  }
  return totals;
}

// whole[dim][16] = sum over blocks of factor * out.
HWY_NOINLINE void WholeOutputs(const PartialsMemory& memory, size_t strip) {
  constexpr size_t kVecs = 8;  // chains at a time
  const float *const factor = memory.Sum(strip), *const out = memory.Out(strip);
  const size_t floats = memory.value_dims * 16;
  static_assert(kVecs % kStripVecs == 0 || kStripVecs % kVecs == 0);
  for (size_t i = 0; i < floats; i += kVecs * kVecFloats) {
    VF whole[kVecs];
    EQ_UNROLL
    for (size_t v = 0; v < kVecs; ++v) whole[v] = hn::Zero(DF());
    for (size_t j = 0; j < memory.blocks; ++j) {
      const float* const from = out + j * floats + i;
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v) {
        const VF f = hn::Load(DF(), factor + j * 16 + (i + v * kVecFloats) % 16);
        whole[v] = hn::MulAdd(f, hn::Load(DF(), from + v * kVecFloats), whole[v]);
      }
    }
    EQ_UNROLL
    for (size_t v = 0; v < kVecs; ++v) hn::Store(whole[v], DF(), memory.whole + i + v * kVecFloats);
  }
}

// memory.mean[block][16]: shares of the blocks' means.
HWY_NOINLINE void MeanShares(const PackedLane& lane, const PartialsMemory& memory, size_t strip,
                             const RowTotals& totals) {
  const int64_t strip_bytes = StripBytes(lane.head_dim());
  for (size_t first = 0; first < memory.blocks; first += 16) {
    const auto* k =
        reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(lane.mean_k()) +
                                       static_cast<int64_t>(first / 16) * strip_bytes);
    const PartialScores<1> tile{k, memory, memory.q + strip * memory.q_stride,
                                memory.mean + first * 16, nullptr};
    ForTailRows(std::min<size_t>(16, memory.blocks - first), tile);
  }
  for (size_t j = 0; j < memory.blocks; ++j) {
    const auto tokens =
        static_cast<float>(lane.grid().KvBlockTokens(static_cast<int64_t>(j)).size());
    for (size_t v = 0; v < kStripVecs; ++v) {
      float* const at = memory.mean + j * 16 + v * kVecFloats;
      // A mean's score is at most the largest one, but for rounding.
      const VF score = hn::Min(hn::Sub(hn::Load(DF(), at), totals.top[v]), hn::Zero(DF()));
      const VF weight = hn::Mul(hn::Set(DF(), tokens), totals.inverse[v]);
      hn::Store(hn::Mul(Exp2(DF(), score), weight), DF(), at);
    }
  }
}

// Squares of what leaving block j out does, [16]: factor * out - ^p ^o - (p - ^p) O.
HWY_NOINLINE void BlockError(const PackedLane& lane, const PartialsMemory& memory, size_t strip,
                             size_t j, bool means, float* HWY_RESTRICT error) {
  const float* const out = memory.Out(strip) + j * memory.value_dims * 16;
  const float* const mean_v = lane.mean_v() + j * memory.value_dims;
  for (size_t v = 0; v < kStripVecs; ++v) {
    const size_t at = v * kVecFloats;
    const VF factor = hn::Load(DF(), memory.Sum(strip) + j * 16 + at);
    const VF share = hn::Load(DF(), memory.Top(strip) + j * 16 + at);
    const VF mean = means ? hn::Load(DF(), memory.mean + j * 16 + at) : hn::Zero(DF());
    const VF rest = hn::Sub(share, mean);
    VF square[2] = {hn::Zero(DF()), hn::Zero(DF())};
    for (size_t dim = 0; dim < memory.value_dims; dim += 2) {
      EQ_UNROLL
      for (size_t i = 0; i < 2; ++i) {
        const size_t d = dim + i;
        VF moved = hn::Mul(factor, hn::Load(DF(), out + d * 16 + at));
        if (means) moved = hn::NegMulAdd(mean, hn::Set(DF(), mean_v[d]), moved);
        moved = hn::NegMulAdd(rest, hn::Load(DF(), memory.whole + d * 16 + at), moved);
        square[i] = hn::MulAdd(moved, moved, square[i]);
      }
    }
    hn::Store(hn::Add(square[0], square[1]), DF(), error + at);
  }
}

// Blocks whose errors are turned from lanes of queries into rows at a time.
inline constexpr size_t kGroup = 16;

void AddErrorsT(const PackedLane& lane, const PartialsMemory& memory, size_t strip, bool means,
                JudgedRow* rows, size_t count) {
  const RowTotals totals = SharesOf(memory, strip);
  WholeOutputs(memory, strip);
  if (means) MeanShares(lane, memory, strip, totals);
  HWY_ALIGN float weight[16] = {}, each[kGroup * 16], row[16][kGroup];
  float* to[16];
  for (size_t r = 0; r < 16; ++r) to[r] = row[r];
  for (size_t r = 0; r < count; ++r) weight[r] = rows[r].weight;
  for (size_t first = 0; first < memory.blocks; first += kGroup) {
    const size_t blocks = std::min(kGroup, memory.blocks - first);
    for (size_t j = 0; j < blocks; ++j)
      BlockError(lane, memory, strip, first + j, means, each + j * 16);
    ColumnsToRows(each, weight, kGroup, to);
    for (size_t r = 0; r < count; ++r) {
      for (size_t j = 0; j < blocks; ++j) rows[r].errors[first + j] += row[r][j];
    }
  }
  for (size_t v = 0; v < kStripVecs; ++v) {
    VF square = hn::Zero(DF());
    for (size_t d = 0; d < memory.value_dims; ++d) {
      const VF x = hn::Load(DF(), memory.whole + d * 16 + v * kVecFloats);
      square = hn::MulAdd(x, x, square);
    }
    hn::Store(square, DF(), each + v * kVecFloats);
  }
  for (size_t r = 0; r < count; ++r) rows[r].square = each[r];
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {

HWY_EXPORT(ComputeT);
HWY_EXPORT(AddErrorsT);

alignas(64) constexpr float kZeroQuery[kMaxHeadDim] = {};

// Of channel i: one bit of a multiplicative hash.
constexpr auto kSigns = [] {
  std::array<float, kMaxHeadDim> signs{};
  for (uint32_t i = 0; i < kMaxHeadDim; ++i) signs[i] = (i * 0x9E3779B9U) >> 31 ? -1.0f : 1.0f;
  return signs;
}();

void Fold(const float* v, int64_t head_dim, int64_t dims, float* to) {
  for (int64_t i = 0; i < dims; ++i) to[i] = kSigns[static_cast<size_t>(i)] * v[i];
  for (int64_t first = dims; first < head_dim; first += dims) {
    const float* const signs = kSigns.data() + first;
    for (int64_t i = 0; i < dims; ++i) to[i] += signs[i] * v[first + i];
  }
}

}  // namespace

void PackedLane::Resize(const BlockGrid& grid, int64_t head_dim, int64_t value_dims) {
  EQ_CHECK(head_dim > 0 && head_dim % kHeadDimStep == 0 && head_dim <= kMaxHeadDim, "head_dim {}",
           head_dim);
  EQ_CHECK(value_dims > 0 && value_dims % kHeadDimStep == 0 && head_dim % value_dims == 0,
           "{} of {} dims", value_dims, head_dim);
  grid_ = grid;
  head_dim_ = head_dim;
  value_dims_ = value_dims;
  const int64_t strips = CeilDiv(grid.kv_tokens, kStripTokens), blocks = grid.KvBlocks();
  k_.Get<std::byte>(strips * StripPitch(head_dim));
  v_.Get<std::byte>(strips * StripPitch(value_dims));
  mean_k_.Get<std::byte>(CeilDiv(blocks, kStripTokens) * StripBytes(head_dim));
  mean_v_.Get<float>(blocks * value_dims);
}

void PackedLane::Pack(const LaneKeys& keys, Range blocks) {
  const int64_t per_block = grid_.block_tokens / kStripTokens;
  const Range strips{blocks.begin * per_block,
                     std::min(blocks.end * per_block, CeilDiv(grid_.kv_tokens, kStripTokens))};
  const Range positions{strips.begin * kStripTokens,
                        std::min(strips.end * kStripTokens, grid_.kv_tokens)};
  PackArgs args{.layout = StripLayout::kKey,
                .source = nullptr,
                .lanes = {},
                .lane = 0,
                .tokens = grid_.kv_tokens,
                .head_dim = head_dim_,
                .token_at_position = keys.token_at_position,
                .strips = strips,
                .pitch = StripPitch(head_dim_)};
  // [positions of these blocks][value_dims]
  std::vector<float> folded;
  TokenSource k(ConstView(keys.k, {1, grid_.kv_tokens, 1, head_dim_})), v(k);
  std::byte *const k_strips = k_.Data<std::byte>(), *const v_strips = v_.Data<std::byte>();
  args.source = &k;
  PackStrips(args, k_strips + strips.begin * args.pitch);
  args.layout = StripLayout::kValue;
  args.pitch = StripPitch(value_dims_);
  args.head_dim = value_dims_;
  if (value_dims_ == head_dim_) {
    v = TokenSource(ConstView(keys.v, {1, grid_.kv_tokens, 1, head_dim_}));
  } else {
    folded.resize(static_cast<size_t>(positions.size() * value_dims_));
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      Fold(keys.v + keys.token_at_position[p] * head_dim_, head_dim_, value_dims_,
           folded.data() + (p - positions.begin) * value_dims_);
    }
    v = TokenSource(ConstView(folded.data(), {1, positions.size(), 1, value_dims_}));
    args.tokens = positions.size();
    args.token_at_position = nullptr;
    args.strips = {0, strips.size()};
  }
  args.source = &v;
  PackStrips(args, v_strips + strips.begin * args.pitch);

  const auto means = [&](std::byte* packed, int64_t dims, float* to) {
    std::vector<const std::byte*> table(static_cast<size_t>(strips.end), nullptr);
    for (int64_t i = strips.begin; i < strips.end; ++i)
      table[static_cast<size_t>(i)] = packed + i * StripPitch(dims);
    const TokenSource source(StripTable{.strips = table, .strips_per_lane = strips.end});
    BlockMeans({.source = &source,
                .lanes = {},
                .lane = 0,
                .grid = grid_,
                .head_dim = dims,
                .blocks = blocks,
                .stride = dims},
               to);
  };
  means(v_strips, value_dims_, mean_v_.Data<float>() + blocks.begin * value_dims_);
  std::vector<float> rows(static_cast<size_t>(blocks.size() * head_dim_));
  means(k_strips, head_dim_, rows.data());
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    auto* const strip = reinterpret_cast<float*>(mean_k_.Data<std::byte>() +
                                                 block / kStripTokens * StripBytes(head_dim_));
    const float* const from = rows.data() + (block - blocks.begin) * head_dim_;
    for (int64_t d = 0; d < head_dim_; ++d)
      strip[d / 16 * 256 + block % kStripTokens * 16 + d % 16] = from[d];
  }
}

namespace {

constexpr int64_t kMostStrips = BlockPartials::kMostRows / kStripTokens;

}  // namespace

void BlockPartials::Compute(const PackedLane& lane, std::span<const float* const> queries,
                            float scale) {
  rows_ = std::ssize(queries);
  EQ_CHECK(rows_ > 0 && rows_ <= kMostRows, "{} rows", rows_);
  blocks_ = lane.grid().KvBlocks();
  head_dim_ = lane.head_dim();
  value_dims_ = lane.value_dims();
  const PartialsMemory memory(
      buffer_.Get<float>(PartialsMemory::Floats(kMostStrips, blocks_, head_dim_, value_dims_)),
      kMostStrips, blocks_, head_dim_, value_dims_);
  const float* rows[kMostRows];
  std::fill(std::ranges::copy(queries, rows).out, rows + kMostRows, kZeroQuery);
  HWY_DYNAMIC_DISPATCH(ComputeT)
  (lane, memory, rows, static_cast<size_t>(CeilDiv(rows_, kStripTokens)), scale);
}

float BlockPartials::Log2Sum(int64_t row, int64_t block) const {
  const PartialsMemory memory(const_cast<float*>(buffer_.Data<float>()), kMostStrips, blocks_,
                              head_dim_, value_dims_);
  const auto strip = static_cast<size_t>(row / kStripTokens);
  const int64_t at = block * 16 + row % kStripTokens;
  return memory.Top(strip)[at] + std::log2(memory.Sum(strip)[at]);
}

float BlockPartials::Output(int64_t row, int64_t block, int64_t dim) const {
  const PartialsMemory memory(const_cast<float*>(buffer_.Data<float>()), kMostStrips, blocks_,
                              head_dim_, value_dims_);
  const auto strip = static_cast<size_t>(row / kStripTokens);
  const int64_t in_strip = row % kStripTokens;
  return memory.Out(strip)[(block * value_dims_ + dim) * 16 + in_strip] /
         memory.Sum(strip)[block * 16 + in_strip];
}

void BlockPartials::AddErrors(const PackedLane& lane, Tail tail, std::span<JudgedRow> rows) {
  EQ_CHECK(std::ssize(rows) == rows_, "{} rows of {}", rows.size(), rows_);
  const PartialsMemory memory(buffer_.Data<float>(), kMostStrips, blocks_, head_dim_, value_dims_);
  for (size_t first = 0; first < rows.size(); first += 16) {
    HWY_DYNAMIC_DISPATCH(AddErrorsT)
    (lane, memory, first / 16, tail == Tail::kMean, rows.data() + first,
     std::min<size_t>(16, rows.size() - first));
  }
}

}  // namespace equitile
#endif  // HWY_ONCE
