#include "equitile/sparsity/layer_attention.h"

#include <algorithm>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/not_finite.h"

namespace equitile {
namespace {

constexpr const char* kRecords = "records";  // in a SourceState

BalancerOptions Balancing(Executor& executor, LayerAttention::Options& options) {
  options.plan.ranks = executor.comm().size();
  options.plan.cluster.wire =
      WireFormatOf(options.head_dim, executor.options().wire, options.compute);
  SetNodes(executor.comm().NodeOf(), options.plan.cluster);
  return {.planner = ParsePlanner(options.planner, options.plan.ranks),
          .plan = options.plan,
          .rule = options.rule,
          .bits_depend_on_plans = options.bits_depend_on_plans};
}

BalancerClock ClockFor(Executor& executor, const LayerAttention::Options& options) {
  BalancerClock clock = ClockOf(executor.comm());
  if (options.plan_clock) clock.now = options.plan_clock;
  return clock;
}

void CheckSkipped(const LaneMasks& masks, std::span<const int64_t> skipped) {
  if (skipped.empty()) return;
  EQ_CHECK(std::ranges::includes(equitile::SkippedHeads(masks), skipped),
           "a head was skipped that has blocks or tails");
}

}  // namespace

LayerAttention::LayerAttention(Executor& executor, std::unique_ptr<MaskSource> source,
                               Options options)
    : executor_(executor),
      source_(std::move(source)),
      balancer_(Balancing(executor, options), ClockFor(executor, options)),
      trace_(options.trace),
      head_dim_(options.head_dim),
      layers_(options.layers),
      compute_(options.compute) {
  if (compute_ == Compute::kInt8) centers_.emplace(layers_, head_dim_);
}

void LayerAttention::Begin(std::unique_ptr<MaskSource> source,
                           std::unique_ptr<AttentionWatch> watch,
                           std::optional<PlanDecisions> repeats) {
  source_ = std::move(source);
  watch_ = std::move(watch);
  records_.clear();
  if (centers_) centers_->Begin();
  balancer_.Begin(std::move(repeats));
}

SourceState LayerAttention::State() const {
  SourceState state = source_->State();
  state.merge(balancer_.State());
  if (centers_) state.merge(centers_->State());
  const std::string text = LayerRecordsText(records_);
  const auto bytes = std::as_bytes(std::span(text));
  state[kRecords] = {bytes.begin(), bytes.end()};
  return state;
}

void LayerAttention::Restore(const SourceState& state) {
  source_->Restore(state);
  balancer_.Restore(state);
  if (centers_) centers_->Restore(state);
  const auto found = state.find(kRecords);
  if (found == state.end()) return;  // of an older version
  records_ = ParseLayerRecords(
      {reinterpret_cast<const char*>(found->second.data()), found->second.size()});
}

std::vector<int64_t> LayerAttention::SkippedHeads(const ComingLayer& layer) {
  return watch_ != nullptr ? std::vector<int64_t>() : source_->SkippedHeads(layer);
}

void LayerAttention::operator()(const SelfAttentionCall& call) {
  Attend(call);
  if (centers_ && call.layer + 1 == layers_) centers_->EndStep(executor_.comm());
}

LaneMasks LayerAttention::MasksFor(const SelfAttentionCall& call) {
  try {
    return source_->MaskFor(call);
  } catch (const NotFinite& error) {  // people count steps from 1
    throw InputError("[sparsity] step {}, layer {}: {}", call.step + 1, call.layer, error.what());
  }
}

void LayerAttention::Attend(const SelfAttentionCall& call) {
  Communicator& comm = executor_.comm();
  LayerRecord record{.step = call.step, .layer = call.layer, .sigma = call.sigma};
  const int32_t counted_step = call.step + 1;  // people count steps from 1

  const double begin = comm.Now();
  const int64_t sent_before = comm.bytes_sent();
  const bool observes = source_->Observes(call);
  const LaneMasks all = MasksFor(call);
  CheckSkipped(all, call.skipped);
  EQ_CHECK(call.skipped.empty() || !observes, "masses of heads that are skipped");
  record.mask_seconds = comm.Now() - begin;
  record.mask_bytes_sent = comm.bytes_sent() - sent_before;
  record.density = all.blocks().Density();
  if (watch_ != nullptr) {
    const double watching = comm.Now();
    record.mass_held = watch_->See(call, all);
    record.watch_seconds = comm.Now() - watching;
  }
  if (std::ssize(call.skipped) == all.blocks().lanes().heads) {
    record.planner = kNoPlanner;
    records_.push_back(std::move(record));
    return;
  }
  const double masked = comm.Now();
  const LaneMasks masks = WithoutHeads(all, call.skipped);

  const BalancedPlan balanced = balancer_.PlanFor(call.layer, masks, /*whole_rows=*/observes);
  record.planner = balanced.plan->planner().Text();
  record.rho_before = balanced.rho_before;
  record.rho_after = balanced.rho_after;
  record.plan_made = balanced.made;
  const auto itinerary =
      executor_.Prepare(*balanced.plan, masks, head_dim_, observes ? Compute::kF32 : compute_);
  const double planned = comm.Now();
  record.plan_seconds = planned - masked;
  if (trace_ != nullptr) {
    trace_->Add(RunEvent{.kind = RunEvent::Kind::kPlan, .begin = masked, .end = planned},
                counted_step, call.layer);
  }

  // The heads that are left have numbers of their own in masks and plan.
  const Lanes lanes = masks.blocks().lanes(), all_lanes = all.blocks().lanes();
  const std::vector<int64_t> heads = HeadsLeft(all_lanes.heads, call.skipped);
  const auto rows_of = [&](const RowProducer& rows) {
    return [&](int64_t lane, int64_t token, int64_t count, float* to) {
      const int64_t head = heads[static_cast<size_t>(lanes.HeadOf(lane))];
      rows(all_lanes.Lane(lanes.BatchOf(lane), head), token, count, to);
    };
  };
  const auto q = rows_of(call.q), v = rows_of(call.v), all_of_k = rows_of(call.k);
  const bool has_all = call.skipped.empty();

  std::vector<const float*> centers;
  if (centers_) {
    if (!observes) centers = centers_->Of(call.layer, heads);
    centers_->Add(call, all_lanes, masks.blocks().grid().kv_tokens, heads, itinerary->home_rows,
                  executor_.pool());
  }
  const auto k = [&](int64_t lane, int64_t token, int64_t count, float* to) {
    all_of_k(lane, token, count, to);
    if (centers.empty()) return;
    const float* const center = centers[static_cast<size_t>(lane)];
    for (int64_t i = 0; i < count * head_dim_; ++i) to[i] -= center[i % head_dim_];
  };
  std::vector<RowMasses> row_masses;
  record.run = executor_.Run(*itinerary, {.step = counted_step,
                                          .layer = call.layer,
                                          .scale = call.scale,
                                          .q = has_all ? call.q : RowProducer(q),
                                          .k = has_all && centers.empty() ? call.k : RowProducer(k),
                                          .v = has_all ? call.v : RowProducer(v),
                                          .out = call.out,
                                          .lse = nullptr,
                                          .masses = observes ? &row_masses : nullptr});
  if (trace_ != nullptr) trace_->Add(executor_.LastRun(), counted_step, call.layer);
  if (observes) {
    const double observing = comm.Now();
    const int64_t sent = comm.bytes_sent();
    source_->Observe(call, masks, row_masses);
    record.mask_seconds += comm.Now() - observing;
    record.mask_bytes_sent += comm.bytes_sent() - sent;
  }
  records_.push_back(std::move(record));
}

std::vector<LayerRecord> LayerAttention::LastOfLayers() const {
  std::vector<LayerRecord> last;
  for (int32_t layer = 0; layer < layers_; ++layer) {
    const auto found = std::find_if(records_.rbegin(), records_.rend(),
                                    [&](const LayerRecord& r) { return r.layer == layer; });
    if (found == records_.rend()) return {};
    last.push_back(*found);
  }
  return last;
}

RunStats LayerAttention::Totals() const {
  RunStats totals;
  for (const LayerRecord& record : records_) {
    const RunStats& run = record.run;
    totals.seconds += run.seconds;
    totals.compute_seconds += run.compute_seconds;
    totals.pack_seconds += run.pack_seconds;
    totals.wait_seconds += run.wait_seconds;
    totals.bytes_sent += run.bytes_sent;
    totals.bytes_received += run.bytes_received;
    totals.buffer_bytes = std::max(totals.buffer_bytes, run.buffer_bytes);
    totals.allocated_bytes = std::max(totals.allocated_bytes, run.allocated_bytes);
  }
  return totals;
}

}  // namespace equitile
