// What the fractional planner asks about ranges of rows: their cost, how many of them move, and
// which K/V blocks they need. All answers come from tables made in one pass over the mask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/plan/predict/cost_model.h"

namespace equitile {

// Holds a view of the mask, which must outlive it.
class RowTable {
 public:
  // row_blocks: RowBlocks(mask).
  RowTable(const BlockMask& mask, std::span<const int32_t> row_blocks, const CostModel& model);

  int64_t Lanes() const { return lanes_; }
  int64_t QBlocks() const { return q_blocks_; }
  int64_t Words() const { return words_; }  // of a set of kv blocks

  int64_t Cost(int64_t lane, Range rows) const {
    const int64_t* prefix = cost_.data() + lane * (q_blocks_ + 1);
    return prefix[rows.end] - prefix[rows.begin];
  }
  int64_t LaneCost(int64_t lane) const { return Cost(lane, {0, q_blocks_}); }
  int64_t LongestRow() const { return longest_row_; }
  // Rows that keep something. The others stay at home, cost nothing and need no transfer.
  int64_t Busy(int64_t lane, Range rows) const {
    const int32_t* prefix = busy_.data() + lane * (q_blocks_ + 1);
    return prefix[rows.end] - prefix[rows.begin];
  }

  // The end e of `rows` whose Cost({rows.begin, e}) is nearest to `cost`; of two the smaller.
  int64_t EndNearest(int64_t lane, Range rows, int64_t cost) const;
  // The same from the back: the begin b whose Cost({b, rows.end}) is nearest to `cost`.
  int64_t BeginNearest(int64_t lane, Range rows, int64_t cost) const;
  // The largest end whose Cost({rows.begin, e}) is at most `cost`.
  int64_t EndWithin(int64_t lane, Range rows, int64_t cost) const;

  // Adds the kv blocks that one of the rows keeps to needed[Words()].
  void AddNeeded(int64_t lane, Range rows, uint64_t* needed) const;
  int64_t LaneColumns(int64_t lane) const { return lane_columns_[static_cast<size_t>(lane)]; }
  // Guess of how many kv blocks that many neighbouring rows need: a line through the mean of the
  // chunks and the whole lane.
  double GuessColumns(int64_t lane, double rows) const;

  // What one call of AddNeeded costs, in words read; for budgets.
  int64_t ProbeWords() const { return words_ * (chunk_rows_ + chunks_); }

 private:
  const BlockMask& mask_;
  int64_t lanes_, q_blocks_, words_;
  int64_t chunk_rows_, chunks_;
  int64_t longest_row_ = 0;
  std::vector<int64_t> cost_;          // [lanes][q_blocks + 1] prefix sums
  std::vector<int32_t> busy_;          // [lanes][q_blocks + 1] prefix sums
  std::vector<uint64_t> needed_;       // [lanes][chunks][words] union of the chunk's rows
  std::vector<int64_t> lane_columns_;  // [lanes]
  std::vector<double> chunk_columns_;  // [lanes] mean over chunks
};

// Set bits of a set of blocks inside a range.
int64_t CountBits(const uint64_t* words, Range bits);

}  // namespace equitile
