#include "equitile/generate/density_estimate.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

// Whether masks follow from step and layer alone.
bool AreKnown(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kDense:
    case AttentionKind::kMask:
    case AttentionKind::kStatic:
    case AttentionKind::kPattern:
    case AttentionKind::kRadial:
    case AttentionKind::kSta:
    case AttentionKind::kWindowSpatial:
    case AttentionKind::kWindowTemporal:
      return true;
    default:
      return false;
  }
}

class Estimator {
 public:
  Estimator(const SparsityOptions& options, const GenerationConfig& config, const WanConfig& model)
      : options_(options), pool_(1) {
    const int64_t tokens = VideoTokens(model, config);
    context_ = {.comm = &comm_,
                .pool = &pool_,
                .lanes = {.batch = config.Passes(), .heads = model.heads},
                .grid = options.GridFor(tokens),
                .token_grid = VideoGrid(model, config),
                .head_dim = model.head_dim,
                .layers = model.layers,
                .sigmas = MakeSchedule(config.sampler, config.steps, config.flow_shift).sigmas};
    estimate_.masks = BlockMask::Dense(context_.lanes, context_.grid);
  }

  DensityEstimate Estimate() {
    SparsityOptions known = options_;
    if (known.attention.kind == AttentionKind::kPatternPredict)
      known.attention.kind = AttentionKind::kPattern;
    if (AreKnown(known.attention.kind)) source_ = MakeMaskSource(known, context_);
    double low = 0, high = 0, sparse = 0, skipped = 0;
    int64_t steps = 0;
    for (int32_t step = 0; step < context_.Steps(); ++step) {
      if (IsSkipped(step)) continue;
      ++steps;
      for (int32_t layer = 0; layer < context_.layers; ++layer) {
        const DensityEstimate call = IsDense(step, layer) ? DensityEstimate{} : OfCall(step, layer);
        low += call.low;
        high += call.high;
        sparse += call.low != 1 ? 1 : 0;
        skipped += call.skipped;
      }
    }
    const auto calls = static_cast<double>(steps * context_.layers);
    estimate_.low = low / calls;
    estimate_.high = high / calls;
    estimate_.sparse_calls = sparse / calls;
    estimate_.skipped = skipped / calls;
    return std::move(estimate_);
  }

 private:
  bool IsDense(int32_t step, int32_t layer) const {
    if (!options_.attention.IsSparse() || options_.warm_up.Covers(step, layer, context_.Steps()))
      return true;
    if (options_.attention.kind != AttentionKind::kObserve) return false;
    const int64_t since = step - options_.ObservedStep();
    const std::optional<int64_t>& refresh = options_.attention.refresh;
    if (options_.attention.error) return since <= 0;
    return since <= 0 || (refresh && since % (*refresh + 1) == 0);
  }

  // As the run was that wrote the masks.
  bool IsSkipped(int32_t step) const {
    return options_.masks && !IsDense(step, 0) && !options_.masks->HasStep(step);
  }

  bool CanLeaveOut(const AttentionSpec& spec) const {
    return spec.error ? *spec.error > 0 : spec.mass < 1 || options_.pattern;
  }

  // Rounded as the rule of masses rounds it; any mass needs a block of each row, and so does any
  // error.
  double Least() const {
    const auto blocks = static_cast<double>(context_.grid.KvBlocks());
    const double any = options_.attention.error || options_.attention.mass > 0 ? 1 : 0;
    return std::max(any, std::ceil(options_.attention.min * blocks - 1e-6)) / blocks;
  }

  DensityEstimate OfCall(int32_t step, int32_t layer) {
    const AttentionSpec& spec = options_.attention;
    switch (spec.kind) {
      case AttentionKind::kPredict:
      case AttentionKind::kObserve:
        return {.low = CanLeaveOut(spec) ? Least() : 1, .high = 1};
      case AttentionKind::kPatternPredict: {
        const double skipped = Skipped(step, layer), most = 1 - skipped;
        // Modes bind by mass alone; by error all that they say is which heads are skipped.
        const double modes = spec.error ? 0 : DensityOf(step, layer);
        return {.low = CanLeaveOut(spec) ? std::max(modes, most * Least()) : most,
                .high = most,
                .skipped = skipped};
      }
      case AttentionKind::kSvg:
      case AttentionKind::kSparge:
        return {.low = spec.density, .high = spec.density};
      case AttentionKind::kOracle:  // sees all masses first
        return {.low = 1 + spec.density, .high = 1 + spec.density};
      default:
        break;
    }
    const double density = DensityOf(step, layer);
    return {.low = density, .high = density, .skipped = Skipped(step, layer)};
  }

  // Share of the layer's heads.
  double Skipped(int32_t step, int32_t layer) {
    const auto heads = source_->SkippedHeads(
        {.step = step, .layer = layer, .sigma = context_.sigmas[static_cast<size_t>(step)]});
    return static_cast<double>(heads.size()) / static_cast<double>(context_.lanes.heads);
  }

  double DensityOf(int32_t step, int32_t layer) {
    auto nobody = [](int64_t, int64_t, int64_t, float*) {
      EQ_CHECK(false, "masks that are known look at queries and keys");
    };
    const LaneMasks masks = source_->MaskFor({.step = step,
                                              .layer = layer,
                                              .sigma = context_.sigmas[static_cast<size_t>(step)],
                                              .scale = 1.0f,
                                              .q = RowProducer(nobody),
                                              .k = RowProducer(nobody),
                                              .v = RowProducer(nobody),
                                              .out = nullptr});
    if (AreKnown(options_.attention.kind)) estimate_.masks = masks;
    return masks.blocks().Density();
  }

  const SparsityOptions& options_;
  SoloCommunicator comm_;
  ThreadPool pool_;
  SourceContext context_;
  std::unique_ptr<MaskSource> source_;
  DensityEstimate estimate_;
};

}  // namespace

DensityEstimate EstimateDensity(const SparsityOptions& options, const GenerationConfig& config,
                                const WanConfig& model) {
  return Estimator(options, config, model).Estimate();
}

}  // namespace equitile
