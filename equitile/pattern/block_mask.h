// Which blocks of attention are computed, as data: one bit per (lane, q_block, kv_block).
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// Sets the bits of a row of words.
void SetBits(std::span<uint64_t> row, Range bits);

// [lanes][q_blocks][kv_blocks] bits; each row starts at a 64-bit word and its unused high bits are
// always 0.
class BlockMask {
 public:
  BlockMask() = default;
  BlockMask(Lanes lanes, BlockGrid grid);  // empty: nothing kept
  static BlockMask Dense(Lanes lanes, BlockGrid grid);

  const Lanes& lanes() const { return lanes_; }
  const BlockGrid& grid() const { return grid_; }
  int64_t LaneCount() const { return lanes_.Count(); }
  int64_t QBlocks() const { return q_blocks_; }
  int64_t KvBlocks() const { return kv_blocks_; }

  bool Get(int64_t lane, int64_t q_block, int64_t kv_block) const {
    return (Row(lane, q_block)[static_cast<size_t>(kv_block >> 6)] >> (kv_block & 63)) & 1;
  }
  void Set(int64_t lane, int64_t q_block, int64_t kv_block, bool keep = true) {
    uint64_t& word = MutableRow(lane, q_block)[static_cast<size_t>(kv_block >> 6)];
    const uint64_t bit = uint64_t{1} << (kv_block & 63);
    word = keep ? word | bit : word & ~bit;
  }

  void SetRange(int64_t lane, int64_t q_block, Range kv_blocks);  // keeps all of them

  int64_t WordsPerRow() const { return words_per_row_; }
  std::span<const uint64_t> Row(int64_t lane, int64_t q_block) const {
    return {words_.data() + RowOffset(lane, q_block), static_cast<size_t>(words_per_row_)};
  }
  std::span<uint64_t> MutableRow(int64_t lane, int64_t q_block) {
    return {words_.data() + RowOffset(lane, q_block), static_cast<size_t>(words_per_row_)};
  }
  std::span<const uint64_t> Words() const { return words_; }

  int64_t RowCount(int64_t lane, int64_t q_block) const;  // kept blocks of one row
  int64_t LaneKept(int64_t lane) const;
  int64_t Kept() const;
  double Density() const;  // kept / all blocks; 0 for a mask without blocks

  // Kept kv blocks of one row, ascending.
  template <typename Visit>
  void ForEachKept(int64_t lane, int64_t q_block, Visit&& visit) const {
    const auto row = Row(lane, q_block);
    for (int64_t w = 0; w < words_per_row_; ++w) {
      for (uint64_t bits = row[static_cast<size_t>(w)]; bits != 0; bits &= bits - 1) {
        visit(w * 64 + std::countr_zero(bits));
      }
    }
  }
  std::vector<int32_t> KeptInRow(int64_t lane, int64_t q_block) const;

  friend bool operator==(const BlockMask&, const BlockMask&) = default;

 private:
  size_t RowOffset(int64_t lane, int64_t q_block) const {
    return static_cast<size_t>((lane * q_blocks_ + q_block) * words_per_row_);
  }

  Lanes lanes_;
  BlockGrid grid_;
  int64_t q_blocks_ = 0, kv_blocks_ = 0, words_per_row_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace equitile
