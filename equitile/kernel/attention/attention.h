// Block-sparse attention: softmax(scale * Q K^T + bias) V over a list of rows, each with its own
// list of kv blocks. A dense call, a mask and a part of a plan all look the same: a list of rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/attention/block_means.h"
#include "equitile/kernel/compute.h"
#include "equitile/kernel/rows/strips.h"
#include "equitile/kernel/workspace.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/pattern/tail.h"
#include "equitile/tensor/view.h"

namespace equitile {

// Rows (lane, q_block) with their kv blocks in ascending order, flat.
struct AttentionRows {
  struct Row {
    int32_t lane = 0;
    int32_t q_block = 0;
  };
  std::vector<Row> rows;
  std::vector<int64_t> first;  // [rows + 1]: row i has kv_blocks[first[i] .. first[i + 1])
  std::vector<int32_t> kv_blocks;

  AttentionRows() : first{0} {}
  static AttentionRows FromMask(const BlockMask& mask);
  static AttentionRows Dense(Lanes lanes, const BlockGrid& grid);

  void Add(int64_t lane, int64_t q_block, std::span<const int32_t> kept);
  int64_t Count() const { return static_cast<int64_t>(rows.size()); }
  std::span<const int32_t> KvBlocks(int64_t row) const {
    const auto i = static_cast<size_t>(row);
    return std::span(kv_blocks).subspan(static_cast<size_t>(first[i]),
                                        static_cast<size_t>(first[i + 1] - first[i]));
  }
};

// Additive logit bias; element (b, h, q, k), by token, lies at data[b * batch_stride + h *
// head_stride + q * q_stride + k]. Strides of 0 repeat: a bias per key has head_stride = q_stride =
// 0. -inf leaves a key out.
struct AttentionBias {
  const float* data = nullptr;  // null: none
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t q_stride = 0;
};

// Lanes whose skipped blocks count. In a lane with Tail::kMean a block of n tokens that a row does
// not keep is one key of that row: the mean of the block's keys, its logit greater by ln n, with
// the mean of the block's values. A row that keeps nothing then attends to means only.
struct AttentionTails {
  std::span<const Tail> lanes;  // [lanes]; empty: none has a tail
  // [lanes], null where there is no tail; means of blocks that every row keeps may be missing.
  // Empty: the call makes them, and neither K nor V may be strips.
  std::span<const LaneMeans> means;
  // What whole rows keep, where the rows of the call are parts of rows: what is merged into a row
  // must bring its tail once. Null: a row keeps its own list.
  const BlockMask* kept = nullptr;

  bool Has(int64_t lane) const {
    return !lanes.empty() && lanes[static_cast<size_t>(lane)] == Tail::kMean;
  }
};

// Where the output of one query strip goes.
struct OutputStrip {
  float* out = nullptr;  // [16 tokens][head_dim], `stride` floats from token to token; fewer tokens
                         // at the end of the sequence
  float* lse = nullptr;  // [16 tokens]
  int64_t stride = 0;
};

// Output that does not form one view: strip s of lane l, in the lane's order, goes to
// strips[l * strips_per_lane + s]. Strips of rows that are not computed may be empty.
struct OutputTable {
  std::span<const OutputStrip> strips;
  int64_t strips_per_lane = 0;
  // Rows are merged with what is there (see MergePartial) instead of replacing it.
  bool merge = false;

  bool Used() const { return strips_per_lane > 0; }
  const OutputStrip& At(int64_t lane, int64_t strip) const {
    return strips[static_cast<size_t>(lane * strips_per_lane + strip)];
  }
};

struct AttentionArgs {
  Lanes lanes;
  BlockGrid grid;
  int64_t head_dim = 0;  // a multiple of 8, up to 512
  float scale = 0.0f;    // >= 0, usually 1 / sqrt(head_dim)
  const AttentionRows* rows = nullptr;

  TokenSource q, k, v;
  // Token order per lane (pattern/token_grid.h, TokenAtPosition): empty, or one pointer per lane,
  // null meaning natural. Applied while packing; packed strips are in order already. Q's also says
  // where output goes.
  std::span<const int32_t* const> q_order, kv_order;
  // In what the products of queries, keys and values are computed. Integers: every token is
  // rounded by a scale of its own (strips.h), its products are summed exactly; means of skipped
  // blocks, sums of weights and the output are f32 all the same. Strips must be packed alike. With
  // masses the call computes in f32.
  Compute compute = Compute::kF32;
  // Per lane a vector [head_dim], or null, that is taken from every key before it is rounded, as it
  // was from strips; empty: none. Softmax does not see it, whatever it is: what keys have in common
  // need not be rounded with what tells them apart. f32 leaves it out.
  std::span<const float* const> k_center;
  AttentionBias bias;  // not together with tails
  AttentionTails tails;

  // Rows that are not in the list are left untouched; rows without kv blocks and without
  // a tail give 0 and -inf.
  View out;  // [batch, q_tokens, heads, head_dim], f32, bf16 or f16
  float* lse =
      nullptr;  // [lanes][q_tokens], natural logarithm of the sum of exponentials; may be null
  OutputTable out_strips;  // where used, `out` and `lse` are not
  // Null, or as long as rows->kv_blocks: what share of its row's softmax each kept block holds,
  // mean over the row's queries. With tails, what the sum of a row lacks to 1 is the share of the
  // means. Not together with out_strips.merge: a part of a row does not know the whole sum.
  float* masses = nullptr;

  // Called by the calling thread between rows and within long ones, at least every millisecond:
  // communication makes progress here.
  FunctionRef<void()> poll;

  const int32_t* QOrder(int64_t lane) const { return OrderOf(q_order, lane); }
  const int32_t* KvOrder(int64_t lane) const { return OrderOf(kv_order, lane); }
  const float* KCenter(int64_t lane) const {
    return k_center.empty() ? nullptr : k_center[static_cast<size_t>(lane)];
  }
  int64_t QBlock(int64_t row) const { return rows->rows[static_cast<size_t>(row)].q_block; }

 private:
  static const int32_t* OrderOf(std::span<const int32_t* const> orders, int64_t lane) {
    return orders.empty() ? nullptr : orders[static_cast<size_t>(lane)];
  }
};

// All lanes of a layer in one call; rows go to threads by descending cost. The result of a row
// depends only on its queries, its kept keys and values in ascending order, the means of the blocks
// that it skips (where it has a tail), and the SIMD target: not on threads, other rows, how calls
// are grouped, or whether the inputs are views, producers or strips. Throws InputError where shapes
// do not fit.
//
// NaN in a query makes that query's output NaN; NaN in a key or value makes every query that keeps
// its block, or skips it and has a tail, NaN. In integers infinity is NaN, and of a value NaN in
// one dim is NaN in all of them and in the log-sum-exp.
void Attention(const AttentionArgs& args, ThreadPool& pool, Workspace& workspace);

// Two partial results over disjoint kv blocks become one, in place in (out, lse): out
// [tokens][head_dim], lse [tokens]. Right also where either or both saw nothing (lse = -inf).
void MergePartial(float* out, float* lse, const float* out2, const float* lse2, int64_t tokens,
                  int64_t head_dim);

}  // namespace equitile
