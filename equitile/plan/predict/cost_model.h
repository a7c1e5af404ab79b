// What a row costs, in integers: so that loads add up exactly and every rank makes the same plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"

namespace equitile {

// The unit is free: `equitile plan` counts kept blocks (1, 0); with measured rates it is
// picoseconds (machine.h).
struct CostModel {
  int64_t block = 1;  // per kept block, ragged ones too
  int64_t row =
      0;  // per row, or part of a row, that keeps at least one block; an empty one costs nothing

  int64_t Of(int64_t kept_blocks) const { return kept_blocks == 0 ? 0 : kept_blocks * block + row; }
  friend bool operator==(const CostModel&, const CostModel&) = default;
};

// Throws InputError unless the costs of a whole layer fit 64 bits: every block kept, every row in
// as many parts as there are ranks.
void CheckCost(const CostModel& model, const Lanes& lanes, const BlockGrid& grid, int32_t ranks);

// [lanes][q_blocks] kept blocks of every row.
std::vector<int32_t> RowBlocks(const BlockMask& mask);

// Counted when first asked for, once for all planners of a mask; some never ask. The mask must stay
// where it is.
class RowCounts {
 public:
  explicit RowCounts(const BlockMask& mask) : mask_(mask) {}
  std::span<const int32_t> Blocks() {  // RowBlocks(mask)
    if (blocks_.empty()) blocks_ = RowBlocks(mask_);
    return blocks_;
  }

 private:
  const BlockMask& mask_;
  std::vector<int32_t> blocks_;
};

// [lanes][q_blocks] cost of every row.
std::vector<int64_t> RowCosts(const BlockMask& mask, const CostModel& model);

}  // namespace equitile
