// Masks by what leaving a block out does to the output (ErrorMaskMaker), kept for some steps. From
// the step's own queries, keys and values; no dense step is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "equitile/sparsity/error/error_mask_maker.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/masks_in_force.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

// What a layer's budget of error is multiplied by, by the noise level of the step.
using LayerWeight = std::function<double(double sigma, int64_t layer)>;

struct ErrorOptions {
  // What may be lost in a layer: square root of the summed squares of what each block that is left
  // out moves the outputs by, over that of the outputs. 0: nothing, all blocks are kept.
  double error = 0.01;
  LayerWeight weight;  // of the error; none: 1 everywhere
  ErrorMaskMaker::Options making;
  int64_t first_step = 0;          // counted from 0; dense before it
  std::optional<int64_t> refresh;  // computed steps; nothing: masks are made once
  std::vector<int64_t> skipped;    // heads, ascending, that have nothing and get nothing
};

class ErrorMasks final : public MaskSource {
 public:
  // shape: lanes, grid and tails of the masks; its blocks do not count.
  ErrorMasks(const SourceContext& context, LaneMasks shape, ErrorOptions options)
      : ErrorMasks(context, std::move(shape), options,
                   std::make_shared<ErrorMaskMaker>(context, options.making)) {}
  // With a maker of such options that serves others too.
  ErrorMasks(const SourceContext& context, LaneMasks shape, ErrorOptions options,
             std::shared_ptr<ErrorMaskMaker> maker);

  LaneMasks MaskFor(const SelfAttentionCall& call) override;
  // A maker that is lent is counted by its owner.
  int64_t Bytes() const override {
    return masks_.Bytes() + (maker_.use_count() == 1 ? maker_->Bytes() : 0);
  }
  SourceState State() const override { return masks_.State(); }
  void Restore(const SourceState& state) override { masks_.Restore(state); }

 private:
  ErrorOptions options_;
  LaneMasks dense_;  // all blocks of all heads that are not skipped
  MasksInForce masks_;
  std::shared_ptr<ErrorMaskMaker> maker_;
};

}  // namespace equitile
