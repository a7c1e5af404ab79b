// Masks from what a dense step has really attended to: exact block masses of one step, one mask for
// the steps after it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "equitile/sparsity/mass/layer_budget.h"
#include "equitile/sparsity/mass/mass_rule.h"
#include "equitile/sparsity/source/masks_in_force.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

struct ObserveOptions {
  MassRule rule{.mass = 0.99};
  HeadMass mass_of_head;       // instead of rule.mass; none: one for all
  int64_t at = 0;                    // the first step that is observed, counted from 0
  std::optional<int64_t> refresh;    // computed steps until the next one is; nothing: never
  bool share_passes = false;         // the conditional pass's masks for all passes
};

// Dense until its first observation, and in every step that it observes.
class ObserveMasks final : public MaskSource {
 public:
  // shape: lanes, grid and tails of the masks, in home order.
  ObserveMasks(const SourceContext& context, LaneMasks shape, ObserveOptions options);

  LaneMasks MaskFor(const SelfAttentionCall& call) override;
  bool Observes(const SelfAttentionCall& call) const override;
  void Observe(const SelfAttentionCall& call, const LaneMasks& masks,
               std::span<const RowMasses> rows) override;
  int64_t Bytes() const override { return masks_.Bytes() + layer_.Bytes(); }
  SourceState State() const override { return masks_.State(); }
  void Restore(const SourceState& state) override { masks_.Restore(state); }

 private:
  SourceContext context_;
  ObserveOptions options_;
  LaneMasks dense_;
  MasksInForce masks_;
  LayerBudget layer_;
};

}  // namespace equitile
