#include "equitile/sparsity/published/svg_masks.h"

#include <algorithm>

#include "equitile/sparsity/source/mask_makers.h"
#include "equitile/sparsity/source/not_finite.h"

namespace equitile {
namespace {

// What is found of a lane, the same on every rank when nothing is under way any more: rows that are
// not finite are an error of all ranks then.
constexpr uint64_t kSpatial = 0, kTemporal = 1, kNeither = 2;

}  // namespace

SvgMasks::SvgMasks(const SourceContext& context, SvgOptions options)
    : context_(context),
      rows_(context, /*at_once=*/1),
      mask_(SvgMask(context.token_grid, context.grid.block_tokens, options)),
      sampled_(SvgSampledTokens(context.token_grid, options)),
      lanes_(rows_.Slots()) {}

uint64_t SvgMasks::Choose(const Rows& rows, float scale) {
  const SvgSample sample{
      .tokens = sampled_, .queries = rows.q, .keys = rows.k, .values = rows.v, .scale = scale};
  try {
    const TokenOrder order =
        ChooseSvgOrder(sample, mask_, context_.token_grid, *context_.pool, scratch_);
    return order == TokenOrder::kHWF ? kTemporal : kSpatial;
  } catch (const NotFinite&) {
    return kNeither;
  }
}

LaneMasks SvgMasks::MaskFor(const SelfAttentionCall& call) {
  const int64_t lanes = context_.lanes.Count();
  std::vector<uint64_t> choice(static_cast<size_t>(lanes), kSpatial);
  const auto gather = [&](const LaneRows::Turn& turn) {
    for (const LaneMaker& lane : turn.lanes) {
      Rows& rows = rows_.IsOwn(lane) ? lanes_[turn.slot] : sent_;
      rows_.Gather(call.q, lane, sampled_, rows.q);
      rows_.GatherAll(call.k, lane, rows.k);
      rows_.GatherAll(call.v, lane, rows.v);
    }
  };
  rows_.InTurns(JudgedLanes(context_.lanes, /*share_passes=*/false, {}), gather,
                [&](const LaneRows::Turn& turn) {
                  for (const LaneMaker& lane : turn.lanes) {
                    if (!rows_.IsOwn(lane)) continue;
                    choice[static_cast<size_t>(lane.lane)] = Choose(lanes_[turn.slot], call.scale);
                  }
                });
  context_.comm->AllReduce(std::span<uint64_t>(choice), Reduce::kMax);
  if (std::ranges::find(choice, kNeither) != choice.end()) throw NotFinite();
  LaneMasks::Parts parts;
  parts.blocks = BlockMask(context_.lanes, context_.grid);
  parts.token_grid = context_.token_grid;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const bool is_temporal = choice[static_cast<size_t>(lane)] == kTemporal;
    parts.orders.push_back(is_temporal ? TokenOrder::kHWF : TokenOrder::kFHW);
    for (int64_t row = 0; row < mask_.QBlocks(); ++row) {
      const auto from = mask_.Row(0, row);
      std::copy(from.begin(), from.end(), parts.blocks.MutableRow(lane, row).begin());
    }
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile
