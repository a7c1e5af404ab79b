// Sums over the bits of a mask, which are nearly all of the time a dbsp plan takes: separate so
// that they can be measured alone. Plain 64-bit words; no column is ever visited bit by bit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"

namespace equitile {

struct MaskMarginals {
  std::vector<int64_t> lane;  // [lanes] kept blocks of a lane
  std::vector<int64_t>
      q_row;  // [q_blocks] kept blocks of a query block, over all lanes; empty if not asked for
};

MaskMarginals CountMarginals(const BlockMask& mask, bool want_rows);

// Counts, for each of 64·words columns, the rows that have its bit set. Rows are folded eight at a
// time through carry-save adders (ones, twos, fours stay bit-sliced; eights go to byte counters),
// about 8 operations per word instead of 64.
class ColumnCounter {
 public:
  explicit ColumnCounter(int64_t words)
      : words_(words), planes_(words * kPlanes), bytes_(words * 8) {}

  // `row` must stay valid until the next Drain.
  void Add(const uint64_t* row) {
    pending_[pending_count_++] = row;
    if (pending_count_ == pending_.size()) Fold();
  }

  // Adds the counts to counts[0 .. size) and starts again from zero. size <= 64·words.
  void Drain(std::span<int32_t> counts);

 private:
  static constexpr int64_t kPlanes = 3;

  void Fold();
  void FlushBytes();

  int64_t words_;
  std::array<const uint64_t*, 8> pending_ = {};
  size_t pending_count_ = 0;
  std::vector<uint64_t> planes_;  // [ones, twos, fours][words]
  std::vector<uint64_t>
      bytes_;      // [8][words]: byte t of [b][w] counts the eights of column 64w + 8t + b
  int folds_ = 0;  // since the last flush; a byte holds 255
  std::vector<int32_t> eights_;  // [64·words], empty until the first flush
  std::vector<uint64_t> zeros_;  // [words], stands in for missing rows
};

}  // namespace equitile
