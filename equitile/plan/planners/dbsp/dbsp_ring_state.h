// The state that the block search of dbsp+ changes: which block lies at which ring rank of one
// Ulysses group, and everything that follows from it, kept up to date under exchanges of two
// blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/block_mask.h"

namespace equitile {

// Query and key blocks are treated alike. For that ranks have labels: a query rank r is its own
// label, a key rank c has label (R - c) mod R. Then what a rank of label a computes in stage s is,
// on both sides, what its blocks keep at label' (a + s) mod R, where label' is the rank itself for
// key ranks seen from query blocks, and the negated rank for query ranks seen from key blocks.
inline int64_t NegatedRank(int64_t rank, int64_t ring) { return rank == 0 ? 0 : ring - rank; }

// The query or the key blocks of the group. Blocks lie in slots; a rank's slots are neighbours, and
// a rank has as many as blocks are at home there.
struct BlockSide {
  // Readers may run over the end of a row of slots by this much.
  static constexpr int64_t kSpare = 16;

  bool key = false;
  int64_t blocks = 0;
  int64_t stride = 0;          // blocks + kSpare
  std::vector<int64_t> begin;  // [R + 1] the slots of label a are begin[a] .. begin[a + 1]
  std::vector<int32_t> label;  // [blocks] of a slot
  std::vector<int32_t> block;  // [blocks] in a slot
  std::vector<int32_t> home;   // [stride] home label of the block in a slot
  std::vector<float> count;    // [R][stride] what the block in a slot keeps at label'
  std::vector<uint16_t> sums;  // [blocks][blocks of the other side]

  const float* CountAt(int64_t x) const { return count.data() + x * stride; }
};

class RingState {
 public:
  // Every block at home.
  RingState(const BlockMask& mask, std::span<const int32_t> lanes, int64_t ring);

  int64_t ring() const { return ring_; }
  int64_t total() const { return total_; }  // kept blocks
  const BlockSide& query() const { return query_; }
  const BlockSide& key() const { return key_; }
  // What rank `label` of a side computes in a stage.
  int64_t Cell(const BlockSide& side, int64_t label, int64_t stage) const {
    return cells_[CellIndex(side, label, stage)];
  }

  int64_t Crit() const;   // F: sum over stages of the largest cell
  int64_t Moved() const;  // blocks that are not at home
  // Root mean square distance of the cells from the mean of their stage.
  double CellSpread() const;

  void Swap(const BlockSide& side, int64_t slot_a, int64_t slot_b);
  // Puts other blocks into the slots: [blocks] each.
  void Place(const std::vector<int32_t>& q_block, const std::vector<int32_t>& kv_block);

 private:
  void MakeSlots(BlockSide& side, int64_t blocks);
  void Fill(BlockSide& side, const std::vector<int32_t>& block);
  void CountAll();
  size_t CellIndex(const BlockSide& side, int64_t label, int64_t stage) const {
    const int64_t q_rank = side.key ? (2 * ring_ - label - stage) % ring_ : label;
    return static_cast<size_t>(q_rank * ring_ + stage);
  }

  int64_t ring_;
  BlockSide query_, key_;
  std::vector<int64_t> cells_;  // [query rank][stage]
  int64_t total_ = 0;
};

}  // namespace equitile
