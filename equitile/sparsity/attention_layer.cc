#include "equitile/sparsity/attention_layer.h"

#include <algorithm>

namespace equitile {

AttentionLayers::AttentionLayers(Executor& executor, int64_t head_dim, PlanFor plan_for)
    : executor_(executor), head_dim_(head_dim), plan_for_(std::move(plan_for)) {}

RunStats AttentionLayers::Run(const BlockMask& mask, const LayerCall& call) {
  const double begin = executor_.comm().Now();
  const auto itinerary = executor_.Prepare(plan_for_(call.layer, mask), mask, head_dim_);
  plan_seconds_ += executor_.comm().Now() - begin;
  const RunStats stats = executor_.Run(*itinerary, call);
  ++runs_;
  totals_.seconds += stats.seconds;
  totals_.compute_seconds += stats.compute_seconds;
  totals_.pack_seconds += stats.pack_seconds;
  totals_.wait_seconds += stats.wait_seconds;
  totals_.bytes_sent += stats.bytes_sent;
  totals_.bytes_received += stats.bytes_received;
  totals_.buffer_bytes = std::max(totals_.buffer_bytes, stats.buffer_bytes);
  totals_.allocated_bytes = std::max(totals_.allocated_bytes, stats.allocated_bytes);
  return stats;
}

}  // namespace equitile
