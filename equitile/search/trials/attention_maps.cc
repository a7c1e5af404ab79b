#include "equitile/search/trials/attention_maps.h"

#include "equitile/search/state/checkpoint_numbers.h"

namespace equitile {

int64_t AttentionMaps::Bytes(int64_t layers, int64_t heads, int64_t blocks) {
  const int64_t cells = std::min(kMostCells, blocks);
  return layers * heads * cells * cells * static_cast<int64_t>(sizeof(uint64_t));
}

void AttentionMaps::AddTo(SourceState& parts) const { PutNumbers(sums_, parts["maps"]); }

void AttentionMaps::Restore(const SourceState& parts) {
  sums_ = TakeNumbers<uint64_t>(parts, "maps", sums_.size());
}

}  // namespace equitile
