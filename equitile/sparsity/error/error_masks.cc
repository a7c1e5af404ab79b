#include "equitile/sparsity/error/error_masks.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

BlockMask AllBut(const SourceContext& context, const std::vector<int64_t>& skipped) {
  BlockMask mask(context.lanes, context.grid);
  for (int64_t lane = 0; lane < context.lanes.Count(); ++lane) {
    if (std::ranges::binary_search(skipped, context.lanes.HeadOf(lane))) continue;
    for (int64_t row = 0; row < mask.QBlocks(); ++row)
      mask.SetRange(lane, row, {0, mask.KvBlocks()});
  }
  return mask;
}

}  // namespace

ErrorMasks::ErrorMasks(const SourceContext& context, LaneMasks shape, ErrorOptions options,
                       std::shared_ptr<ErrorMaskMaker> maker)
    : options_(std::move(options)),
      dense_(AllBut(context, options_.skipped)),
      masks_(std::move(shape), context.token_grid, context.layers),
      maker_(std::move(maker)) {}

LaneMasks ErrorMasks::MaskFor(const SelfAttentionCall& call) {
  const double weight = options_.weight ? options_.weight(call.sigma, call.layer) : 1;
  const double error = options_.error * weight;
  if (call.step < options_.first_step || error <= 0) return dense_;
  const int64_t age = masks_.AgeOf(call.layer);
  if (age < 0 || (options_.refresh && age >= *options_.refresh)) {
    masks_.Set(call.layer,
               maker_->Make(call, {.error = error,
                                   .shape = masks_.shape(),
                                   .before = age < 0 ? nullptr : &masks_.MasksOf(call.layer),
                                   .skipped = options_.skipped}));
  }
  return masks_.Use(call.layer);
}

}  // namespace equitile
