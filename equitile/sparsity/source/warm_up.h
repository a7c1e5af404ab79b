// Steps and layers that stay dense around a source of sparse masks: the first steps decide where
// things are, and errors made there stay.
#pragma once

#include <cstdint>
#include <memory>

#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

struct WarmUpOptions {
  int64_t dense_steps = 0;   // the first ones
  int64_t dense_layers = 0;  // the first ones
  bool dense_last_step = false;

  bool Covers(int64_t step, int64_t layer, int64_t steps) const {
    return step < dense_steps || layer < dense_layers || (dense_last_step && step == steps - 1);
  }
};

class WarmUp final : public MaskSource {
 public:
  WarmUp(const SourceContext& context, WarmUpOptions options, std::unique_ptr<MaskSource> source)
      : options_(options),
        steps_(context.Steps()),
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
  int64_t Bytes() const override { return dense_.Bytes() + source_->Bytes(); }
  SourceState State() const override { return source_->State(); }
  void Restore(const SourceState& state) override { source_->Restore(state); }

 private:
  // at: a call, or a layer before it.
  template <typename Place>
  bool IsDense(const Place& at) const {
    return options_.Covers(at.step, at.layer, steps_);
  }

  WarmUpOptions options_;
  int64_t steps_;
  LaneMasks dense_;
  std::unique_ptr<MaskSource> source_;
};

}  // namespace equitile
