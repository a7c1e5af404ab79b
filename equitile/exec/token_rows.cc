#include "equitile/exec/token_rows.h"

#include <cstring>

namespace equitile {

void ReadRows(const TokenSource& source, Lanes lanes, int64_t lane, int64_t first, int64_t count,
              int64_t head_dim, float* rows) {
  if (source.IsProducer()) {
    source.producer(lane, first, count, rows);
    return;
  }
  const int64_t batch = lanes.BatchOf(lane), head = lanes.HeadOf(lane);
  const bool plain = source.view.dtype() == DType::kF32 && source.view.Stride(3) == 1;
  for (int64_t t = 0; t < count; ++t, rows += head_dim) {
    if (plain) {
      std::memcpy(rows, source.view.Address(batch, first + t, head, 0),
                  static_cast<size_t>(head_dim) * sizeof(float));
    } else {
      for (int64_t i = 0; i < head_dim; ++i) rows[i] = source.view.Load(batch, first + t, head, i);
    }
  }
}

LaneOrders::LaneOrders(const Problem& problem) {
  if (problem.orders.empty()) return;
  for (const TokenOrder order : problem.orders) {
    if (order == problem.token_grid.home) {
      by_lane_.push_back(nullptr);
      continue;
    }
    std::vector<int32_t>& map = maps_[order];
    if (map.empty()) map = TokenAtPosition(problem.token_grid, order);
    by_lane_.push_back(map.data());
  }
}

}  // namespace equitile
