// Where masks come from: the one question that a layer asks before it attends. Behind it may stand
// a constant, a file, a pattern per head, a prediction, or what an earlier step has seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "equitile/exec/executor.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/pattern/lane_masks.h"
#include "equitile/pattern/skipped_heads.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

class MaskSource {
 public:
  virtual ~MaskSource() = default;

  // Collective, and the same on every rank, for any number of them. Called once per layer and
  // computed step, steps ascending and layers ascending within a step.
  virtual LaneMasks MaskFor(const SelfAttentionCall& call) = 0;

  // Heads that MaskFor will give neither blocks nor tails in any pass, as far as that is known
  // before the layer's queries and keys are; ascending. Asked once, before MaskFor.
  virtual std::vector<int64_t> SkippedHeads(const ComingLayer& layer) {
    static_cast<void>(layer);
    return {};
  }

  // Whether this call's block masses are wanted; asked before MaskFor. The layer then runs in a
  // layout that computes rows whole, and Observe gets the masses of the rows that this rank has
  // computed.
  virtual bool Observes(const SelfAttentionCall& call) const {
    static_cast<void>(call);
    return false;
  }
  // Collective, after the layer.
  virtual void Observe(const SelfAttentionCall& call, const LaneMasks& masks,
                       std::span<const RowMasses> rows) {
    static_cast<void>(call);
    static_cast<void>(masks);
    static_cast<void>(rows);
  }

  // Of masks that it keeps, for estimates.
  virtual int64_t Bytes() const { return 0; }

  // Between two steps. Restore: given what State gave in another process, on every rank.
  virtual SourceState State() const { return {}; }
  virtual void Restore(const SourceState& state) { static_cast<void>(state); }
};

// The same for every layer and step.
class ConstantMasks final : public MaskSource {
 public:
  explicit ConstantMasks(LaneMasks masks) : masks_(std::move(masks)) {}
  LaneMasks MaskFor(const SelfAttentionCall&) override { return masks_; }
  std::vector<int64_t> SkippedHeads(const ComingLayer&) override {
    return equitile::SkippedHeads(masks_);
  }
  int64_t Bytes() const override { return masks_.Bytes(); }

 private:
  LaneMasks masks_;
};

}  // namespace equitile
