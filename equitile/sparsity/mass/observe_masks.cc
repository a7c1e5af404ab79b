#include "equitile/sparsity/mass/observe_masks.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/pooling.h"
#include "equitile/sparsity/mass/predict_masks.h"

namespace equitile {

ObserveMasks::ObserveMasks(const SourceContext& context, LaneMasks shape, ObserveOptions options)
    : context_(context),
      options_(std::move(options)),
      dense_(BlockMask::Dense(context.lanes, context.grid)),
      masks_(std::move(shape), context.token_grid, context.layers) {}

bool ObserveMasks::Observes(const SelfAttentionCall& call) const {
  const int64_t age = masks_.AgeOf(call.layer);
  if (age < 0) return call.step >= options_.at;
  return options_.refresh && age >= *options_.refresh;
}

LaneMasks ObserveMasks::MaskFor(const SelfAttentionCall& call) {
  const bool dense = masks_.AgeOf(call.layer) < 0 || Observes(call);
  return dense ? dense_ : masks_.Use(call.layer);
}

// A row's mask is made by the rank that has computed the row: nobody else has its masses.
void ObserveMasks::Observe(const SelfAttentionCall& call, const LaneMasks& masks,
                           std::span<const RowMasses> rows) {
  EQ_CHECK(masks.blocks().Density() == 1.0, "masses of a step that was not dense");
  BlockMask mask(context_.lanes, context_.grid);
  std::vector<uint32_t> one_row(static_cast<size_t>(mask.KvBlocks()));
  const bool by_layer = options_.rule.budget == MassBudget::kLayer;
  layer_.Clear();
  for (const RowMasses& row : rows) {
    const Lanes& lanes = context_.lanes;
    if (options_.share_passes && lanes.BatchOf(row.lane) > 0) continue;
    MassRule rule = options_.rule;
    if (options_.mass_of_head)
      rule.mass = options_.mass_of_head(call.sigma, call.layer, lanes.HeadOf(row.lane));
    const std::span<uint32_t> integers =
        by_layer ? layer_.Add(row.lane, row.q_block, mask.KvBlocks()) : std::span(one_row);
    for (size_t j = 0; j < integers.size(); ++j) {
      const double share = static_cast<double>(row.masses[j]) * kWholeMass;
      integers[j] =
          share >= 0 && share <= 2.0 * kWholeMass ? static_cast<uint32_t>(std::lround(share)) : 0;
    }
    if (!by_layer) KeepByMass(integers, rule, row.lane, row.q_block, mask);
  }
  if (by_layer) layer_.Keep(*context_.comm, options_.rule, mask);
  GatherRows(*context_.comm, mask);
  if (options_.share_passes) SharePasses(mask);
  masks_.Set(call.layer, masks_.shape().WithBlocks(std::move(mask)));
}

}  // namespace equitile
