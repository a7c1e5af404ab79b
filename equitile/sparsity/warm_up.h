// Steps and layers that stay dense around a source of sparse masks: the first steps decide where
// things are, and errors made there stay.
#pragma once

#include <cstdint>
#include <memory>

#include "equitile/sparsity/mask_source.h"
#include "equitile/sparsity/source_context.h"

namespace equitile {

struct WarmUpOptions {
  int64_t dense_steps = 0;   // the first ones
  int64_t dense_layers = 0;  // the first ones
  bool dense_last_step = false;
};

class WarmUp final : public MaskSource {
 public:
  WarmUp(const SourceContext& context, WarmUpOptions options, std::unique_ptr<MaskSource> source)
      : options_(options),
        last_step_(context.Steps() - 1),
        dense_(BlockMask::Dense(context.lanes, context.grid)),
        source_(std::move(source)) {}

  LaneMasks MaskFor(const SelfAttentionCall& call) override {
    return IsDense(call) ? dense_ : source_->MaskFor(call);
  }
  std::vector<int64_t> SkippedHeads(const ComingLayer& layer) override {
    return IsDense(layer) ? std::vector<int64_t>() : source_->SkippedHeads(layer);
  }
  bool Observes(const SelfAttentionCall& call) const override { return source_->Observes(call); }
  void Observe(const SelfAttentionCall& call, const LaneMasks& masks,
               std::span<const RowMasses> rows) override {
    source_->Observe(call, masks, rows);
  }
  std::optional<double> MassHeld() const override { return source_->MassHeld(); }
  int64_t Bytes() const override { return dense_.Bytes() + source_->Bytes(); }
  SourceState State() const override { return source_->State(); }
  void Restore(const SourceState& state) override { source_->Restore(state); }

 private:
  // at: a call, or a layer before it.
  template <typename Place>
  bool IsDense(const Place& at) const {
    return at.step < options_.dense_steps || at.layer < options_.dense_layers ||
           (options_.dense_last_step && at.step == last_step_);
  }

  WarmUpOptions options_;
  int64_t last_step_;
  LaneMasks dense_;
  std::unique_ptr<MaskSource> source_;
};

}  // namespace equitile
