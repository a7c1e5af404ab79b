#include "equitile/search/layer_trials.h"

#include <memory>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/sparsity/error_mask_maker.h"

namespace equitile {
namespace {

// One layer with the masks of kWeighedError; those of the other errors are only counted.
class LayerTrial final : public MaskSource {
 public:
  LayerTrial(const SourceContext& context, int64_t layer, ErrorMaskMaker& maker,
             std::vector<double>& densities)
      : layer_(layer),
        maker_(maker),
        densities_(densities),
        shape_(ShapeOf(context, Tail::kMean)),
        dense_(BlockMask::Dense(context.lanes, context.grid)) {}

  LaneMasks MaskFor(const SelfAttentionCall& call) override {
    if (call.layer != layer_) return dense_;
    const LaneMasks used = maker_.Make(call, {.error = kWeighedError, .shape = shape_});
    for (size_t i = 0; i < kTriedErrors.size(); ++i) {
      const LaneMasks tried =
          kTriedErrors[i] == kWeighedError
              ? used
              : maker_.Make(call, {.error = kTriedErrors[i], .shape = shape_, .before = &used});
      densities_[i] += tried.blocks().Density();
    }
    return used;
  }

 private:
  int64_t layer_;
  ErrorMaskMaker& maker_;
  std::vector<double>& densities_;  // sums over steps
  LaneMasks shape_, dense_;
};

}  // namespace

std::vector<LayerCurve> TryLayers(const VelocityJudge& judge, int64_t every, CalibrationRun& run) {
  const SourceContext context = run.OnePrompt();
  ErrorMaskMaker maker(context, {});
  std::vector<LayerCurve> curves(static_cast<size_t>(context.layers));
  for (LayerCurve& curve : curves) curve.densities.resize(kTriedErrors.size());
  const std::vector<double> errors =
      judge.Errors({.doing = "weighing errors of layers",
                    .sources = context.layers,
                    .every = every,
                    .source = [&](int64_t layer) -> std::unique_ptr<MaskSource> {
                      return std::make_unique<LayerTrial>(
                          context, layer, maker, curves[static_cast<size_t>(layer)].densities);
                    }},
                   run);
  if (errors.empty()) return {};
  for (size_t layer = 0; layer < curves.size(); ++layer) {
    curves[layer].velocity_error = errors[layer];
    for (double& density : curves[layer].densities)
      density /= static_cast<double>(judge.Steps(every));
  }
  return curves;
}

}  // namespace equitile
