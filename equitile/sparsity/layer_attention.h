// Self-attention behind the transformer's seam: the mask of each layer, handed to the executor, and
// a record of how each layer runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "equitile/exec/trace.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/sparsity/attention_layer.h"
#include "equitile/sparsity/balancer.h"

namespace equitile {

// How a layer runs, for people.
struct LayerLayout {
  std::string planner;  // "fractional"
  double rho = 1.0;     // work of the busiest rank over the mean
  double density = 1.0;
};

class LayerAttention {
 public:
  struct Options {
    std::string planner = "auto";
    PlanOptions plan;  // ranks are the executor's
    ReplanRule rule;
    Trace* trace = nullptr;  // null: none
    int64_t head_dim = 0;
    int64_t layers = 0;
  };

  // masks: one for all layers, or one per layer; all of the same lanes and tokens. Throws
  // InputError where the planner is unknown or does not fit the number of ranks.
  LayerAttention(Executor& executor, std::vector<BlockMask> masks, Options options);
  LayerAttention(const LayerAttention&) = delete;
  LayerAttention& operator=(const LayerAttention&) = delete;

  void operator()(const SelfAttentionCall& call);  // collective

  // The next call of layer 0 begins step `step` (counted from 1), for traces and messages.
  void BeginRun(int32_t step) { step_ = step - 1; }

  // [layers]; empty names before a layer's first call.
  const std::vector<LayerLayout>& layouts() const { return layouts_; }
  const AttentionLayers& runs() const { return runs_; }
  BalanceReport Balance() const { return balancer_.Report(); }

 private:
  const Plan& PlanOf(int32_t layer, const BlockMask& mask);

  Executor& executor_;
  std::vector<BlockMask> masks_;
  CostModel cost_;
  Balancer balancer_;
  Trace* trace_;
  int32_t step_ = 0;
  std::vector<LayerLayout> layouts_;
  AttentionLayers runs_;
};

}  // namespace equitile
