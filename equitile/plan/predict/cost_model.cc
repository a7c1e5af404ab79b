#include "equitile/plan/predict/cost_model.h"

#include <algorithm>

#include "equitile/base/bit_count.h"
#include "equitile/base/error.h"

namespace equitile {

void CheckCost(const CostModel& model, const Lanes& lanes, const BlockGrid& grid, int32_t ranks) {
  const double rows = static_cast<double>(lanes.Count()) * static_cast<double>(grid.QBlocks());
  const double row = static_cast<double>(grid.KvBlocks()) * static_cast<double>(model.block) +
                     static_cast<double>(ranks) * static_cast<double>(model.row);
  if (model.block < 0 || model.row < 0 || rows * row > 0x1p62) {
    throw InputError(
        "[plan] costs of {} per block and {} per row: must not be negative, and those of all "
        "{:g} rows must fit 64 bits",
        model.block, model.row, rows);
  }
}

std::vector<int32_t> RowBlocks(const BlockMask& mask) {
  const int64_t rows = mask.LaneCount() * mask.QBlocks();
  std::vector<int32_t> blocks(static_cast<size_t>(rows));
  CountBitsOfRows(mask.Words().data(), rows, mask.WordsPerRow(), blocks.data());
  return blocks;
}

std::vector<int64_t> RowCosts(const BlockMask& mask, const CostModel& model) {
  const std::vector<int32_t> blocks = RowBlocks(mask);
  std::vector<int64_t> costs(blocks.size());
  std::transform(blocks.begin(), blocks.end(), costs.begin(),
                 [&](int32_t kept) { return model.Of(kept); });
  return costs;
}

}  // namespace equitile
