#include "equitile/sparsity/predict_masks.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

Problem ProblemOf(const SourceContext& context, const LaneMasks& shape) {
  return CheckedProblem({.ranks = context.comm->size(),
                         .lanes = context.lanes,
                         .grid = context.grid,
                         .token_grid = shape.token_grid(),
                         .orders = shape.orders()});
}

}  // namespace

void SharePasses(BlockMask& mask) {
  const Lanes lanes = mask.lanes();
  for (int64_t lane = lanes.heads; lane < lanes.Count(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      const auto from = mask.Row(lanes.HeadOf(lane), q);
      std::copy(from.begin(), from.end(), mask.MutableRow(lane, q).begin());
    }
  }
}

PredictMasks::PredictMasks(const SourceContext& context, LaneMasks shape, PredictOptions options)
    : context_(context),
      options_(std::move(options)),
      masks_(shape, context.layers),
      strips_(ProblemOf(context, shape), context.head_dim, *context.comm, *context.pool),
      scratch_(static_cast<size_t>(context.pool->Threads())),
      row_(scratch_.size()) {
  for (std::vector<uint32_t>& row : row_) row.resize(static_cast<size_t>(context.grid.KvBlocks()));
}

LaneMasks PredictMasks::MaskFor(const SelfAttentionCall& call) {
  const int64_t age = masks_.AgeOf(call.layer);
  if (age < 0 || age >= options_.refresh) masks_.Set(call.layer, Predict(call));
  return masks_.Use(call.layer);
}

// Masks that are made anew in every step need not be remembered.
SourceState PredictMasks::State() const {
  return options_.refresh > 1 ? masks_.State() : SourceState();
}

LaneMasks PredictMasks::Predict(const SelfAttentionCall& call) {
  strips_.Gather(call);
  const LaneMasks& shape = masks_.shape();
  BlockMask mask(context_.lanes, context_.grid);
  const int64_t rows = mask.QBlocks();
  for (size_t i = 0; i < strips_.lanes().size(); ++i) {
    const int64_t lane = strips_.lanes()[i];
    if (options_.share_passes && context_.lanes.BatchOf(lane) > 0) continue;
    MassRule rule = options_.rule;
    if (options_.mass_of_head)
      rule.mass = options_.mass_of_head(call.sigma, call.layer, context_.lanes.HeadOf(lane));
    const MassPredictor predictor(strips_.MeansOf(i), call.scale);
    context_.pool->ParallelFor(rows, [&](int64_t q_block, int thread) {
      std::vector<float>& scratch = scratch_[static_cast<size_t>(thread)];
      std::vector<uint32_t>& masses = row_[static_cast<size_t>(thread)];
      scratch.resize(static_cast<size_t>(predictor.ScratchFloats()));
      predictor.PredictRow(q_block, scratch.data(), masses.data());
      std::ranges::copy(shape.blocks().Row(lane, q_block), mask.MutableRow(lane, q_block).begin());
      KeepByMass(masses, rule, lane, q_block, mask);
    });
  }
  GatherRows(*context_.comm, mask);
  if (options_.share_passes) SharePasses(mask);
  return shape.WithBlocks(std::move(mask));
}

}  // namespace equitile
