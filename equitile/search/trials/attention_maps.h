// Where every head's attention lies, in few enough cells to keep for a whole model: for looking at.
// Masks are cut from exact masses of blocks instead.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/sparsity/source/source_state.h"

namespace equitile {

class AttentionMaps {
 public:
  static constexpr int64_t kMostCells = 64;  // to a side

  AttentionMaps() = default;
  AttentionMaps(int64_t layers, int64_t heads, int64_t blocks)
      : heads_(heads), blocks_(blocks), sums_(static_cast<size_t>(layers * heads * Squared())) {}

  int64_t cells() const { return std::min(kMostCells, blocks_); }
  // The cell of a block, of queries or of keys, in home order.
  int64_t CellOf(int64_t block) const { return block * cells() / blocks_; }

  // [heads][cells of queries][cells of keys], in integers that ranks may add up in any order.
  std::span<uint64_t> Layer(int64_t layer) {
    return std::span(sums_).subspan(static_cast<size_t>(layer * heads_ * Squared()),
                                    static_cast<size_t>(heads_ * Squared()));
  }
  std::span<const uint64_t> Of(int64_t layer, int64_t head) const {
    return std::span(sums_).subspan(static_cast<size_t>((layer * heads_ + head) * Squared()),
                                    static_cast<size_t>(Squared()));
  }

  static int64_t Bytes(int64_t layers, int64_t heads, int64_t blocks);
  void AddTo(SourceState& parts) const;
  void Restore(const SourceState& parts);  // throws InputError for another search's

 private:
  int64_t Squared() const { return cells() * cells(); }

  int64_t heads_ = 0, blocks_ = 0;
  std::vector<uint64_t> sums_;
};

}  // namespace equitile
