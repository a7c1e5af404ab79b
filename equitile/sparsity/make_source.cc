#include "equitile/sparsity/make_source.h"

#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/sparsity/easy_cache.h"
#include "equitile/sparsity/error/error_masks.h"
#include "equitile/sparsity/files/pattern_masks.h"
#include "equitile/sparsity/mass/observe_masks.h"
#include "equitile/sparsity/mass/oracle_masks.h"
#include "equitile/sparsity/mass/predict_masks.h"
#include "equitile/sparsity/published/sparge_masks.h"
#include "equitile/sparsity/published/static_masks.h"
#include "equitile/sparsity/published/svg_masks.h"

namespace equitile {
namespace {

// Masses of a file are those of a head's rows.
MassRule RuleOf(const SparsityOptions& options) {
  const AttentionSpec& spec = options.attention;
  return {.mass = spec.mass,
          .min = spec.min,
          .budget = options.pattern ? MassBudget::kRow : spec.budget};
}

PredictOptions PredictingOf(const SparsityOptions& options, const SourceContext& context) {
  const AttentionSpec& spec = options.attention;
  PredictOptions predict;
  predict.rule = RuleOf(options);
  if (options.pattern) predict.mass_of_head = PredictMassOf(options.pattern, spec.mass);
  predict.refresh = spec.refresh.value_or(context.Steps());
  predict.guard = spec.guard;
  predict.share_passes = options.share_passes;
  return predict;
}

StaticMaskPlace PlaceOf(const SourceContext& context) {
  return {.lanes = context.lanes,
          .grid = context.token_grid,
          .block_tokens = context.grid.block_tokens};
}

std::unique_ptr<MaskSource> Observed(const SparsityOptions& options, const SourceContext& context) {
  const AttentionSpec& spec = options.attention;
  ObserveOptions observe;
  observe.rule = RuleOf(options);
  if (options.pattern) observe.mass_of_head = ObserveMassOf(options.pattern, spec.mass);
  observe.at = options.ObservedStep();
  observe.refresh = spec.refresh;
  observe.share_passes = options.share_passes;
  return std::make_unique<ObserveMasks>(context, ShapeOf(context, spec.tail), observe);
}

ErrorOptions ErrorsOf(const SparsityOptions& options) {
  const AttentionSpec& spec = options.attention;
  const bool observes = spec.kind == AttentionKind::kObserve;
  ErrorOptions error;
  error.error = *spec.error;
  if (options.pattern) error.weight = ErrorWeightOf(options.pattern);
  error.making = {
      .sampled_rows = spec.rows, .orders = spec.orders, .share_passes = options.share_passes};
  error.first_step = observes ? options.ObservedStep() + 1 : 0;
  error.refresh = spec.refresh;
  return error;
}

std::unique_ptr<MaskSource> ByError(const SparsityOptions& options, const SourceContext& context) {
  return std::make_unique<ErrorMasks>(context, ShapeOf(context, options.attention.tail),
                                      ErrorsOf(options));
}

FillUp FillUpOf(const SparsityOptions& options, const SourceContext& context) {
  FillUp fill_up{.by = PredictOptions(), .tail = options.attention.tail};
  if (options.attention.error) {
    fill_up.by = ErrorsOf(options);
  } else {
    fill_up.by = PredictingOf(options, context);
  }
  return fill_up;
}

std::unique_ptr<MaskSource> Bare(const SparsityOptions& options, const SourceContext& context) {
  if (options.attention.ReadsMasks())
    return std::make_unique<FileMasks>(options.masks->ForBatch(context.lanes.batch));
  switch (options.attention.kind) {
    case AttentionKind::kDense:
      return std::make_unique<ConstantMasks>(BlockMask::Dense(context.lanes, context.grid));
    case AttentionKind::kPredict:
      if (options.attention.error) return ByError(options, context);
      return std::make_unique<PredictMasks>(context, ShapeOf(context, options.attention.tail),
                                            PredictingOf(options, context));
    case AttentionKind::kObserve:
      if (options.attention.error) return ByError(options, context);
      return Observed(options, context);
    case AttentionKind::kPattern:
      return std::make_unique<PatternMasks>(context, options.pattern, std::nullopt);
    case AttentionKind::kPatternPredict:
      return std::make_unique<PatternMasks>(context, options.pattern, FillUpOf(options, context));
    case AttentionKind::kSvg:
      return std::make_unique<SvgMasks>(context, SvgOptions{.density = options.attention.density});
    case AttentionKind::kRadial:
      return std::make_unique<ConstantMasks>(RadialMasks(PlaceOf(context)));
    case AttentionKind::kSta:
      return std::make_unique<ConstantMasks>(SlidingTileMasks(
          PlaceOf(context), SlidingTilesOfDensity(context.token_grid, options.attention.density)));
    case AttentionKind::kSparge:
      return std::make_unique<SpargeMasks>(context,
                                           SpargeOptions{.top_k = options.attention.density});
    case AttentionKind::kWindowSpatial:
      return std::make_unique<ConstantMasks>(
          WindowMasks(PlaceOf(context), HeadMode::kDiagonal, options.attention.density));
    case AttentionKind::kWindowTemporal:
      return std::make_unique<ConstantMasks>(
          WindowMasks(PlaceOf(context), HeadMode::kMultiDiagonal, options.attention.density));
    case AttentionKind::kOracle:
      return std::make_unique<OracleMasks>(context, ShapeOf(context, options.attention.tail),
                                           OracleOptions{.density = options.attention.density,
                                                         .share_passes = options.share_passes});
    case AttentionKind::kMask:
    case AttentionKind::kStatic:
      break;  // above
  }
  EQ_CHECK(false, "attention {}", static_cast<int>(options.attention.kind));
}

}  // namespace

BlockGrid SparsityOptions::GridFor(int64_t tokens) const {
  if (masks) return masks->First().blocks().grid();
  return {.q_tokens = tokens, .kv_tokens = tokens};
}

int64_t SparsityOptions::ObservedStep() const {
  return attention.at ? *attention.at - 1 : warm_up.dense_steps - 1;
}

int64_t SparsityOptions::ComputedSteps() const {
  const bool observes = attention.kind == AttentionKind::kObserve;
  return std::max(
      {warm_up.dense_steps, observes ? ObservedStep() + 1 : 0, masks ? masks->DenseSteps() : 0});
}

void CheckSparsity(const SparsityOptions& options, int64_t steps, int64_t layers) {
  const WarmUpOptions& warm_up = options.warm_up;
  if (warm_up.dense_layers > layers) {
    throw InputError("--dense-layers {}: the model has {} layers", warm_up.dense_layers, layers);
  }
  const std::string name = options.attention.Text();
  if (options.attention.kind == AttentionKind::kObserve) {
    if (options.ObservedStep() < 0) {
      throw InputError(
          "--attention {}: with --dense-steps 0 there is no dense step to observe{}; give one, or "
          "at=STEP",
          name,
          options.attention.error ? ", and masks of the first step's noise would be for all steps"
                                  : "");
    }
    if (options.ObservedStep() >= steps) {
      throw InputError("--attention {}: step {} of {} steps cannot be observed", name,
                       options.ObservedStep() + 1, steps);
    }
  }
  if (options.masks) {
    const int64_t first = std::max(options.ComputedSteps(), EasyCacheOptions::kLeastFirstSteps);
    const Range skippable = options.cache_bound ? Range{first, steps - 1} : Range{};
    options.masks->CheckCovers(
        {warm_up.dense_steps, steps - (warm_up.dense_last_step ? 1 : 0)}, layers,
        {.skippable = skippable, .dense_layers = warm_up.dense_layers});
  }
}

std::unique_ptr<MaskSource> MakeMaskSource(const SparsityOptions& options,
                                           const SourceContext& context) {
  std::unique_ptr<MaskSource> source = Bare(options, context);
  if (!options.attention.IsSparse()) return source;
  return std::make_unique<WarmUp>(context, options.warm_up, std::move(source));
}

}  // namespace equitile
