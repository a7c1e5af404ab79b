#include "equitile/sparsity/mass/predict_masks.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/mask_makers.h"

namespace equitile {
namespace {

Problem ProblemOf(const SourceContext& context, const LaneMasks& shape) {
  return CheckedProblem({.ranks = context.comm->size(),
                         .lanes = context.lanes,
                         .grid = context.grid,
                         .token_grid = shape.token_grid(),
                         .orders = shape.orders()});
}

// The same rows with length 1; what has no direction stays 0.
auto DirectionsOf(const RowProducer& rows, int64_t head_dim) {
  return [&rows, head_dim](int64_t lane, int64_t first, int64_t count, float* to) {
    rows(lane, first, count, to);
    for (float* row = to; row != to + count * head_dim; row += head_dim) {
      double squares = 0;
      for (int64_t i = 0; i < head_dim; ++i) squares += double{row[i]} * double{row[i]};
      const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
      for (int64_t i = 0; i < head_dim; ++i) row[i] = static_cast<float>(double{row[i]} * scale);
    }
  };
}

// Whether one of the block's strips is less like itself than the bound.
bool IsUnlike(const Range& tokens, const std::vector<double>& similarities, double bound) {
  for (int64_t strip = tokens.begin / kStripTokens; strip * kStripTokens < tokens.end; ++strip) {
    if (similarities[static_cast<size_t>(strip)] < bound) return true;
  }
  return false;
}

}  // namespace

std::vector<double> SelfSimilarities(const float* directions, int64_t strips, int64_t head_dim) {
  std::vector<double> similarities;
  for (int64_t strip = 0; strip < strips; ++strip) {
    double sum = 0;
    for (int64_t i = 0; i < head_dim; ++i)
      sum += double{directions[strip * head_dim + i]} * double{directions[strip * head_dim + i]};
    similarities.push_back(sum);
  }
  return similarities;
}

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
      masks_(shape, context.token_grid, context.layers),
      strips_(ProblemOf(context, shape),
              JudgedLanes(context.lanes, options_.share_passes, options_.skipped), context.head_dim,
              *context.comm, *context.pool),
      scratch_(static_cast<size_t>(context.pool->Threads())),
      row_(scratch_.size()) {
  if (options_.guard > 0) {
    directions_ = std::make_unique<StripPool>(
        ProblemOf(context, shape),
        JudgedLanes(context.lanes, options_.share_passes, options_.skipped), context.head_dim,
        *context.comm, *context.pool);
  }
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

void PredictMasks::Guard(size_t index, BlockMask& mask) const {
  const StripMeans means = directions_->MeansOf(index);
  const BlockGrid& grid = context_.grid;
  const int64_t strips = CeilDiv(grid.q_tokens, kStripTokens), dim = context_.head_dim;
  const std::vector<double> q = SelfSimilarities(means.q, strips, dim);
  const std::vector<double> k = SelfSimilarities(means.k, strips, dim);
  const int64_t lane = strips_.lanes()[index];
  for (int64_t row = 0; row < mask.QBlocks(); ++row) {
    if (IsUnlike(grid.QBlockTokens(row), q, options_.guard))
      mask.SetRange(lane, row, {0, mask.KvBlocks()});
  }
  for (int64_t column = 0; column < mask.KvBlocks(); ++column) {
    if (!IsUnlike(grid.KvBlockTokens(column), k, options_.guard)) continue;
    for (int64_t row = 0; row < mask.QBlocks(); ++row) mask.Set(lane, row, column);
  }
}

LaneMasks PredictMasks::Predict(const SelfAttentionCall& call) {
  strips_.Gather(call);
  if (directions_ != nullptr) {
    const auto q = DirectionsOf(call.q, context_.head_dim);
    const auto k = DirectionsOf(call.k, context_.head_dim);
    SelfAttentionCall directed = call;
    directed.q = RowProducer(q);
    directed.k = RowProducer(k);
    directions_->Gather(directed);
  }
  const LaneMasks& shape = masks_.shape();
  BlockMask mask(context_.lanes, context_.grid);
  const int64_t rows = mask.QBlocks(), columns = mask.KvBlocks();
  const bool by_layer = options_.rule.budget == MassBudget::kLayer;
  layer_.Clear();
  for (size_t i = 0; i < strips_.lanes().size(); ++i) {
    const int64_t lane = strips_.lanes()[i];
    MassRule rule = options_.rule;
    if (options_.mass_of_head)
      rule.mass = options_.mass_of_head(call.sigma, call.layer, context_.lanes.HeadOf(lane));
    for (int64_t row = 0; row < rows; ++row)
      std::ranges::copy(shape.blocks().Row(lane, row), mask.MutableRow(lane, row).begin());
    if (directions_ != nullptr) Guard(i, mask);
    const MassPredictor predictor(strips_.MeansOf(i), call.scale);
    const std::span<uint32_t> all =
        by_layer ? layer_.AddLane(lane, rows, columns) : std::span<uint32_t>();
    context_.pool->ParallelFor(rows, [&](int64_t q_block, int thread) {
      std::vector<float>& scratch = scratch_[static_cast<size_t>(thread)];
      const std::span<uint32_t> masses =
          by_layer
              ? all.subspan(static_cast<size_t>(q_block * columns), static_cast<size_t>(columns))
              : std::span(row_[static_cast<size_t>(thread)]);
      scratch.resize(static_cast<size_t>(predictor.ScratchFloats()));
      predictor.PredictRow(q_block, scratch.data(), masses.data());
      if (!by_layer) KeepByMass(masses, rule, lane, q_block, mask);
    });
  }
  if (by_layer) layer_.Keep(*context_.comm, options_.rule, mask);
  GatherRows(*context_.comm, mask);
  if (options_.share_passes) SharePasses(mask);
  return shape.WithBlocks(std::move(mask));
}

}  // namespace equitile
