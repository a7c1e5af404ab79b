#include "equitile/kernel/attention/next_reads.h"

#include <algorithm>

namespace equitile {

void NextReads::AddTokens(const TokenSource& source, Lanes lanes, int64_t lane,
                          const int32_t* order, Range positions) {
  if (source.IsStrips() || source.IsProducer()) return;
  const ConstView& view = source.view;
  row_bytes = std::max(row_bytes, view.Extent(3) * DTypeBytes(view.dtype()));
  for (int64_t p = positions.begin; p < positions.end; ++p)
    rows.push_back(view.Address(lanes.BatchOf(lane), order ? order[p] : p, lanes.HeadOf(lane), 0));
}

}  // namespace equitile
