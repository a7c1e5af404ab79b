// Sums over the bits of a mask, which are nearly all of the time a dbsp plan takes: separate so
// that they can be measured alone. Plain 64-bit words through carry-save adders; no bit is ever
// visited alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"

namespace equitile {

std::vector<int64_t> CountLanes(const BlockMask& mask);  // [lanes] kept blocks of a lane
std::vector<int64_t> CountRows(
    const BlockMask& mask);  // [q_blocks] kept blocks of a query block, over all lanes

// [q_blocks][kv_blocks] how many of `lanes` keep the block; counts above 65535 stay at 65535.
std::vector<uint16_t> SumLanes(const BlockMask& mask, std::span<const int32_t> lanes);

using EightRows = std::array<const uint64_t*, 8>;

// Counts, for each of 64·words columns, the rows that have its bit set. Rows are folded eight at a
// time: ones, twos and fours stay bit-sliced, eights go to byte counters. About 10 operations per
// word instead of 64.
class ColumnCounter {
 public:
  explicit ColumnCounter(int64_t words)
      : words_(words), planes_(words * 3), carried_(words), bytes_(words * 8) {}

  // Rows rows[k] of the matrix at `base`, [rows][words]; it must stay where it is until the next
  // Drain.
  void AddRows(const uint64_t* base, std::span<const int32_t> rows);

  // Adds the counts to counts[0 .. size) and starts again from zero. size <= 64·words.
  void Drain(std::span<int32_t> counts);

 private:
  template <int64_t kWords>  // 0: words_
  void AddRowsOf(const uint64_t* base, std::span<const int32_t> rows);
  template <int64_t kWords>
  void Fold(const EightRows& row);
  void FlushBytes();

  int64_t words_;
  EightRows pending_ = {};
  size_t pending_count_ = 0;
  std::vector<uint64_t> planes_;   // [ones, twos, fours][words]
  std::vector<uint64_t> carried_;  // [words] eights out of the last fold
  // [8][words]: byte t of [b][w] counts the eights of column 64w + 8t + b.
  std::vector<uint64_t> bytes_;
  int folds_ = 0;                // since the last flush; a byte holds 255
  std::vector<int32_t> eights_;  // [64·words], empty until the first flush
  std::vector<uint64_t> zeros_;  // [words], stands in for missing rows
};

}  // namespace equitile
