// What each kv block alone gives to a few queries of a lane. With these, what any choice of blocks
// does to the queries' outputs is a small sum: no key is looked at twice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/kernel/workspace.h"
#include "equitile/pattern/block_grid.h"

namespace equitile {

// One lane's keys and values as they lie at home, and the order in which they form blocks.
struct LaneKeys {
  const float* k = nullptr;  // [tokens][head_dim]
  const float* v = nullptr;
  const int32_t* token_at_position = nullptr;  // [tokens]
  BlockGrid grid;                              // kv blocks are those of positions
  int64_t head_dim = 0;
  float scale = 0;

  const float* KeyAt(int64_t position) const { return k + Token(position) * head_dim; }
  const float* ValueAt(int64_t position) const { return v + Token(position) * head_dim; }

 private:
  int64_t Token(int64_t position) const { return token_at_position[position]; }
};

class BlockPartials {
 public:
  // queries: [rows][head_dim]. The same bits for any number of threads and whatever other rows
  // there are.
  void Compute(const LaneKeys& keys, std::span<const float> queries, ThreadPool& pool);

  int64_t Rows() const { return rows_; }
  int64_t Blocks() const { return blocks_; }
  // Softmax over the block's keys, times their values; and the logarithm of the sum of
  // exponentials.
  const float* Output(int64_t row, int64_t block) const {
    return block < full_ ? out_.data() + (row * full_ + block) * head_dim_
                         : last_out_.data() + row * head_dim_;
  }
  float LogSum(int64_t row, int64_t block) const {
    return lse_[static_cast<size_t>(block * rows_ + row)];
  }
  // What share of the row's softmax each block holds, [blocks]; returns the logarithm of the whole
  // sum. NaN where the row has no finite one.
  double Shares(int64_t row, std::span<float> shares) const;

 private:
  int64_t rows_ = 0, blocks_ = 0, full_ = 0, head_dim_ = 0;  // full: blocks that are not ragged
  std::vector<float> out_;                                   // [rows][full][head_dim]
  std::vector<float> last_out_;                              // [rows][head_dim] of the ragged one
  std::vector<float> lse_;                                   // [blocks][rows]
  Workspace workspace_;
};

}  // namespace equitile
