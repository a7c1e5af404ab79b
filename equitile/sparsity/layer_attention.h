// Self-attention behind the transformer's seam: asks the source what the layer attends to, the
// balancer who computes it, hands both to the executor, and keeps a record of how each call went.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "equitile/exec/executor.h"
#include "equitile/exec/trace.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/sparsity/attention_watch.h"
#include "equitile/sparsity/balance/balancer.h"
#include "equitile/sparsity/key_centers.h"
#include "equitile/sparsity/layer_record.h"
#include "equitile/sparsity/source/mask_source.h"

namespace equitile {

class LayerAttention {
 public:
  struct Options {
    std::string planner = "auto";
    PlanOptions plan;  // ranks are the executor's
    ReplanRule rule;
    bool bits_depend_on_plans = false;   // see BalancerOptions
    std::function<double()> plan_clock;  // seconds; none: the communicator's. Tests plant others.
    Trace* trace = nullptr;              // null: none
    int64_t head_dim = 0;
    int64_t layers = 0;
    Compute compute = Compute::kF32;  // of steps that do not observe: those compute in f32
  };

  // Throws InputError where the planner is unknown or does not fit the number of ranks.
  LayerAttention(Executor& executor, std::unique_ptr<MaskSource> source, Options options);

  // Another video: its own source, who looks on (null: nobody), and a record that begins anew. Of
  // plans see Balancer::Begin.
  void Begin(std::unique_ptr<MaskSource> source, std::unique_ptr<AttentionWatch> watch = nullptr,
             std::optional<PlanDecisions> repeats = std::nullopt);
  LayerAttention(const LayerAttention&) = delete;
  LayerAttention& operator=(const LayerAttention&) = delete;

  // Collective. Heads that the call skips must be without blocks and tails: what is planned, moved
  // and computed is a layer of the other heads.
  // Heads whose values nobody will ask for, see MaskSource; who looks on sees all of them.
  std::vector<int64_t> SkippedHeads(const ComingLayer& layer);
  void operator()(const SelfAttentionCall& call);

  MaskSource& source() { return *source_; }
  const MaskSource& source() const { return *source_; }
  // Of the source and of plans, between two steps; and the record of all calls so far.
  SourceState State() const;
  void Restore(const SourceState& state);
  const PlanDecisions& PlansDecided() const { return balancer_.decisions(); }
  const std::vector<LayerRecord>& records() const { return records_; }
  std::vector<LayerRecord> LastOfLayers() const;  // [layers]; empty before the first call
  RunStats Totals() const;                        // sums over all calls; of bytes held, the most

 private:
  LaneMasks MasksFor(const SelfAttentionCall& call);
  void Attend(const SelfAttentionCall& call);

  Executor& executor_;
  std::unique_ptr<MaskSource> source_;
  std::unique_ptr<AttentionWatch> watch_;
  Balancer balancer_;
  Trace* trace_;
  int64_t head_dim_, layers_;
  Compute compute_;
  std::optional<KeyCenters> centers_;  // of int8
  std::vector<LayerRecord> records_;
};

}  // namespace equitile
