// Lanes packed once, in one token order, for the many attention calls of a search over the same
// queries, keys and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/pattern/token_grid.h"
#include "equitile/search/trials/lane_gather.h"

namespace equitile {

// Attention of some rows of the lanes, by position in the lanes' order.
struct LaneOutput {
  std::vector<float> out;  // [lanes][positions][head_dim]
  std::vector<float> lse;  // [lanes][positions]
};

class PackedLanes {
 public:
  // Everything must outlive it, but for the inputs.
  PackedLanes(const LaneInputs& inputs, const TokenGrid& grid, int64_t block_tokens,
              TokenOrder order, ThreadPool& pool, Workspace& workspace);

  const Lanes& lanes() const { return lanes_; }  // batch items of one head
  const BlockGrid& grid() const { return grid_; }
  int64_t head_dim() const { return head_dim_; }
  LaneOutput Output() const;  // of the right size, contents undefined

  // Rows of `output` that are not in the list stay as they are. masses: as AttentionArgs has them.
  void Attend(const AttentionRows& rows, LaneOutput& output, float* masses = nullptr);
  // Rows without blocks: what `kept` does not keep of them, by its means.
  void AttendToMeans(const AttentionRows& rows, const BlockMask& kept, LaneOutput& output);

  static int64_t LaneBytes(int64_t tokens, int64_t head_dim);  // of what is packed

 private:
  struct Side {
    AlignedBuffer<std::byte> bytes;
    std::vector<const std::byte*> strips;  // [lanes][strips]
  };
  Side Pack(std::span<const float> rows, StripLayout layout,
            const std::vector<int32_t>& token_at_position);
  void MakeMeans(const LaneInputs& inputs, const std::vector<int32_t>& token_at_position);
  AttentionArgs Args(const AttentionRows& rows, LaneOutput& output) const;

  Lanes lanes_;
  BlockGrid grid_;
  int64_t head_dim_, strips_;
  float scale_;
  ThreadPool& pool_;
  Workspace& workspace_;
  Side q_, k_, v_;
  std::vector<float> mean_rows_;  // [lanes][k, v][kv blocks][head_dim]
  std::vector<LaneMeans> means_;  // [lanes]
  std::vector<Tail> mean_tails_;  // [lanes], all kMean
};

}  // namespace equitile
