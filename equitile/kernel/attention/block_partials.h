// What each kv block alone gives to a few queries of a lane. With these, what any choice of blocks
// does to the queries' outputs is a small sum: no key is looked at twice. A kernel of its own:
// attention keeps one sum per query and forgets the blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "equitile/base/growing_buffer.h"
#include "equitile/base/range.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/pattern/tail.h"

namespace equitile {

// One lane's keys and values as they lie at home, and the order in which they form blocks.
struct LaneKeys {
  const float* k = nullptr;  // [tokens][head_dim]
  const float* v = nullptr;
  const int32_t* token_at_position = nullptr;  // [tokens]
  BlockGrid grid;                              // kv blocks are those of positions
  int64_t head_dim = 0;                        // a multiple of 8, up to kMaxHeadDim
};

// The same in that order, as BlockPartials reads them, with the mean of every block. Its memory
// serves all lanes.
class PackedLane {
 public:
  // Room for a lane of this shape; its blocks are then to be packed. value_dims: head_dim, or a
  // divisor of it, a multiple of 8: values are then folded, each number the sum of head_dim /
  // value_dims others with fixed random signs. That keeps lengths of vectors, but for an error of
  // sqrt(2 / value_dims) in their squares: enough for errors, no output.
  void Resize(const BlockGrid& grid, int64_t head_dim, int64_t value_dims);
  // Threads may pack different blocks at the same time.
  void Pack(const LaneKeys& keys, Range blocks);

  const BlockGrid& grid() const { return grid_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t value_dims() const { return value_dims_; }
  int64_t Bytes() const { return k_.Bytes() + v_.Bytes() + mean_k_.Bytes() + mean_v_.Bytes(); }

  // Strips of positions, StripPitch of head_dim and of value_dims apart.
  const std::byte* k() const { return k_.Data<std::byte>(); }
  const std::byte* v() const { return v_.Data<std::byte>(); }
  // Means of blocks: of keys as strips of 16 blocks, StripBytes apart; of values
  // [blocks][head_dim].
  const float* mean_k() const { return mean_k_.Data<float>(); }
  const float* mean_v() const { return mean_v_.Data<float>(); }

 private:
  BlockGrid grid_;
  int64_t head_dim_ = 0, value_dims_ = 0;
  GrowingBuffer k_, v_, mean_k_, mean_v_;
};

// Whose errors are asked for: errors[kv blocks] of its block of queries grow by weight times its
// own.
struct JudgedRow {
  float weight = 1;
  float* errors = nullptr;
  float square = 0;  // of its output, unweighted: is set
};

// Of a few queries; one per thread.
class BlockPartials {
 public:
  // Two strips: what a register tile takes at a time.
  static constexpr int64_t kMostRows = 2 * kStripTokens;

  // queries: 1 to kMostRows, each [head_dim]. A row's bits depend on no other row.
  void Compute(const PackedLane& lane, std::span<const float* const> queries, float scale);

  int64_t Blocks() const { return blocks_; }
  // The sum of the block's exponentials as 2^Log2Sum, and the softmax over the block's keys alone,
  // times their values.
  float Log2Sum(int64_t row, int64_t block) const;
  float Output(int64_t row, int64_t block, int64_t dim) const;

  // With o_j and p_j the output and share of block j, O = sum p_j o_j, and ^p_j, ^o_j those of its
  // mean (0 without): leaving j out moves O by  p_j (o_j - O) - ^p_j (^o_j - O),  to first order.
  // The error is its square. rows: of the queries of Compute. What is not finite gives squares that
  // are not. Once after each Compute: sums and outputs are gone then.
  void AddErrors(const PackedLane& lane, Tail tail, std::span<JudgedRow> rows);

  int64_t Bytes() const { return buffer_.Bytes(); }

 private:
  int64_t rows_ = 0, blocks_ = 0, head_dim_ = 0, value_dims_ = 0;
  GrowingBuffer buffer_;
};

}  // namespace equitile
