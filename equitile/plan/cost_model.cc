#include "equitile/plan/cost_model.h"

#include <algorithm>

#include "equitile/base/bit_count.h"

namespace equitile {

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
