#include "equitile/search/trials/column_masses.h"

#include <algorithm>
#include <cmath>

#include "equitile/kernel/rows/pooling.h"
#include "equitile/search/state/checkpoint_numbers.h"

namespace equitile {

ColumnTable MakeColumnTable(int64_t layers, int64_t heads, int64_t kv_blocks) {
  const std::vector<uint64_t> head(static_cast<size_t>(kv_blocks));
  return ColumnTable(static_cast<size_t>(layers), {static_cast<size_t>(heads), head});
}

void PutColumns(const ColumnTable& columns, SourceState& parts) {
  std::vector<uint64_t> sums;
  for (const auto& layer : columns) {
    for (const auto& head : layer) sums.insert(sums.end(), head.begin(), head.end());
  }
  PutNumbers(sums, parts["columns"]);
}

void TakeColumns(const SourceState& parts, ColumnTable& columns) {
  size_t count = 0;
  for (const auto& layer : columns) {
    for (const auto& head : layer) count += head.size();
  }
  const auto sums = TakeNumbers<uint64_t>(parts, "columns", count);
  auto from = sums.begin();
  for (auto& layer : columns) {
    for (auto& head : layer) {
      std::copy_n(from, head.size(), head.begin());
      from += static_cast<std::ptrdiff_t>(head.size());
    }
  }
}

// Integers, so that ranks may add up what they have in any order.
void ColumnMassSource::Observe(const SelfAttentionCall& call, const LaneMasks&,
                               std::span<const RowMasses> rows) {
  const auto blocks = static_cast<size_t>(context_.grid.KvBlocks());
  const auto cells = static_cast<size_t>(maps_.cells());
  const std::span<uint64_t> layer_maps = maps_.Layer(call.layer);
  const size_t columns = static_cast<size_t>(context_.lanes.heads) * blocks;
  std::vector<uint64_t> seen(columns + layer_maps.size());
  for (const RowMasses& row : rows) {
    const auto head = static_cast<size_t>(context_.lanes.HeadOf(row.lane));
    const auto row_cell = static_cast<size_t>(maps_.CellOf(row.q_block));
    uint64_t* map = seen.data() + columns + (head * cells + row_cell) * cells;
    for (size_t j = 0; j < blocks; ++j) {
      const double share = static_cast<double>(row.masses[j]) * kWholeMass;
      if (!(share > 0 && share <= 2.0 * kWholeMass)) continue;
      const auto mass = static_cast<uint64_t>(std::llround(share));
      seen[head * blocks + j] += mass;
      map[maps_.CellOf(static_cast<int64_t>(j))] += mass;
    }
  }
  context_.comm->AllReduce(std::span(seen), Reduce::kSum);
  auto& layer = sums_[static_cast<size_t>(call.layer)];
  for (size_t i = 0; i < columns; ++i) layer[i / blocks][i % blocks] += seen[i];
  for (size_t i = 0; i < layer_maps.size(); ++i) layer_maps[i] += seen[columns + i];
}

}  // namespace equitile
