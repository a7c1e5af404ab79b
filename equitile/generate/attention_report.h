// How self-attention went, as JSON: for sidecars, --perf-dump-path and the last line of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/io/json_value.h"
#include "equitile/sparsity/layer_attention.h"

namespace equitile {

// Sums over all layers and steps, on this rank.
Json AttentionTotals(const LayerAttention& attention);

// Of each layer, as it ran last.
Json AttentionLayouts(const LayerAttention& attention);

// Plans made and kept, seconds of choosing and lowering them, and mean ρ of the plan at hand when
// masks came and of the one that was run.
Json PlansSummary(const LayerAttention& attention);

// What was kept: mean density over all computed layers and over those from the first step on in
// which one was not dense, that step (counted from 1) with its sigma, and where it was measured the
// mass that was held: mean and fifth percentile over lanes of all calls.
Json SparsitySummary(const LayerAttention& attention);

// Everything, one entry per step and layer.
Json AttentionCalls(const LayerAttention& attention);

// [steps] of all layers: masks, looking on, plans and attention.
std::vector<double> AttentionSecondsOfSteps(const LayerAttention& attention, int64_t steps);

}  // namespace equitile
