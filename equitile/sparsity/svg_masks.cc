#include "equitile/sparsity/svg_masks.h"

#include <algorithm>

#include "equitile/sparsity/strip_pool.h"

namespace equitile {

SvgMasks::SvgMasks(const SourceContext& context, SvgOptions options)
    : context_(context),
      rows_(context),
      mask_(SvgMask(context.token_grid, context.grid.block_tokens, options)),
      sampled_(SvgSampledTokens(context.token_grid, options)) {}

// Collective; what it says counts on the lane's maker.
TokenOrder SvgMasks::ChooseOrder(const SelfAttentionCall& call, int64_t lane) {
  rows_.Gather(call.q, lane, sampled_, q_);
  rows_.GatherAll(call.k, lane, k_);
  rows_.GatherAll(call.v, lane, v_);
  rows_.Finish();
  if (k_.empty()) return TokenOrder::kFHW;
  return ChooseSvgOrder(
      {.tokens = sampled_, .queries = q_, .keys = k_, .values = v_, .scale = call.scale}, mask_,
      context_.token_grid, *context_.pool, scratch_);
}

LaneMasks SvgMasks::MaskFor(const SelfAttentionCall& call) {
  const int64_t lanes = context_.lanes.Count();
  std::vector<uint64_t> temporal(static_cast<size_t>(lanes), 0);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const TokenOrder order = ChooseOrder(call, lane);
    const bool here = MaskMakerOf(lane, context_.comm->size()) == context_.comm->rank();
    temporal[static_cast<size_t>(lane)] = here && order != TokenOrder::kFHW ? 1 : 0;
  }
  context_.comm->AllReduce(std::span<uint64_t>(temporal), Reduce::kMax);
  LaneMasks::Parts parts;
  parts.blocks = BlockMask(context_.lanes, context_.grid);
  parts.token_grid = context_.token_grid;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const bool is_temporal = temporal[static_cast<size_t>(lane)] != 0;
    parts.orders.push_back(is_temporal ? TokenOrder::kHWF : TokenOrder::kFHW);
    for (int64_t row = 0; row < mask_.QBlocks(); ++row) {
      const auto from = mask_.Row(0, row);
      std::copy(from.begin(), from.end(), parts.blocks.MutableRow(lane, row).begin());
    }
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile
