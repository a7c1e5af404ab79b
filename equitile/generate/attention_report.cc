#include "equitile/generate/attention_report.h"

#include <algorithm>
#include <numeric>

namespace equitile {
namespace {

Json MeanOf(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The value that a twentieth of them do not exceed.
Json FifthPercentileOf(std::vector<double> values) {
  if (values.empty()) return nullptr;
  const auto at = values.begin() + (std::ssize(values) - 1) / 20;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

Json AttentionTotals(const LayerAttention& attention) {
  const RunStats totals = attention.Totals();
  double masks = 0, plans = 0, watch = 0;
  int64_t mask_bytes = 0;
  for (const LayerRecord& record : attention.records()) {
    masks += record.mask_seconds;
    mask_bytes += record.mask_bytes_sent;
    plans += record.plan_seconds;
    watch += record.watch_seconds;
  }
  return {{"runs", attention.records().size()},
          {"seconds", totals.seconds},
          {"compute_seconds", totals.compute_seconds},
          {"pack_seconds", totals.pack_seconds},
          {"wait_seconds", totals.wait_seconds},
          {"plan_seconds", plans},
          {"mask_seconds", masks},
          {"watch_seconds", watch},
          {"bytes_sent", totals.bytes_sent},
          {"bytes_received", totals.bytes_received},
          {"mask_bytes_sent", mask_bytes},
          {"buffer_bytes", totals.buffer_bytes}};
}

Json AttentionLayouts(const LayerAttention& attention) {
  Json layouts = Json::array();
  for (const LayerRecord& layer : attention.LastOfLayers()) {
    layouts.push_back(
        {{"planner", layer.planner}, {"rho", layer.rho_after}, {"density", layer.density}});
  }
  return layouts;
}

Json PlansSummary(const LayerAttention& attention) {
  int64_t made = 0, calls = 0;
  double seconds = 0, before = 0, after = 0;
  for (const LayerRecord& record : attention.records()) {
    if (record.planner == kNoPlanner) continue;
    ++calls;
    made += record.plan_made ? 1 : 0;
    seconds += record.plan_seconds;
    before += record.rho_before;
    after += record.rho_after;
  }
  const auto mean = [&](double sum) { return calls > 0 ? sum / static_cast<double>(calls) : 1.0; };
  return {{"made", made},
          {"kept", calls - made},
          {"seconds", seconds},
          {"rho_before", mean(before)},
          {"rho_after", mean(after)}};
}

Json SparsitySummary(const LayerAttention& attention) {
  double all = 0, sparse = 0;  // sparse: from the first step on in which a layer was
  int64_t sparse_calls = 0;
  std::vector<double> held;  // by all lanes of all calls
  const LayerRecord* first = nullptr;
  for (const LayerRecord& record : attention.records()) {
    all += record.density;
    held.insert(held.end(), record.mass_held.begin(), record.mass_held.end());
    if (record.density < 1.0 && first == nullptr) first = &record;
  }
  for (const LayerRecord& record : attention.records()) {
    if (first == nullptr || record.step < first->step) continue;
    sparse += record.density;
    ++sparse_calls;
  }
  const auto calls = static_cast<double>(attention.records().size());
  Json summary = {{"density", calls > 0 ? all / calls : 1.0},
                  {"sparse_density", nullptr},
                  {"first_sparse_step", nullptr},
                  {"first_sparse_sigma", nullptr},
                  {"mass_held", MeanOf(held)},
                  {"mass_held_p5", FifthPercentileOf(held)}};
  if (first != nullptr) {
    summary["sparse_density"] = sparse / static_cast<double>(sparse_calls);
    summary["first_sparse_step"] = first->step + 1;
    summary["first_sparse_sigma"] = first->sigma;
  }
  return summary;
}

Json AttentionCalls(const LayerAttention& attention) {
  Json calls = Json::array();
  for (const LayerRecord& r : attention.records()) {
    calls.push_back({{"step", r.step + 1},
                     {"layer", r.layer},
                     {"sigma", r.sigma},
                     {"density", r.density},
                     {"mass_held", MeanOf(r.mass_held)},
                     {"mass_held_p5", FifthPercentileOf(r.mass_held)},
                     {"planner", r.planner},
                     {"plan_made", r.plan_made},
                     {"rho_before", r.rho_before},
                     {"rho_after", r.rho_after},
                     {"mask_seconds", r.mask_seconds},
                     {"mask_bytes_sent", r.mask_bytes_sent},
                     {"watch_seconds", r.watch_seconds},
                     {"plan_seconds", r.plan_seconds},
                     {"attention_seconds", r.run.seconds},
                     {"compute_seconds", r.run.compute_seconds},
                     {"pack_seconds", r.run.pack_seconds},
                     {"wait_seconds", r.run.wait_seconds},
                     {"bytes_sent", r.run.bytes_sent}});
  }
  return calls;
}

std::vector<double> AttentionSecondsOfSteps(const LayerAttention& attention, int64_t steps) {
  std::vector<double> seconds(static_cast<size_t>(steps), 0.0);
  for (const LayerRecord& record : attention.records()) {
    if (record.step < steps) seconds[static_cast<size_t>(record.step)] += record.Seconds();
  }
  return seconds;
}

}  // namespace equitile
