#include "equitile/search/judge/layer_trials.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/sparsity/error/error_mask_maker.h"

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

bool TryLayers(const LayerTrials& trials, const VelocityJudge& judge, CalibrationRun& run,
               std::vector<LayerCurve>& curves) {
  const SourceContext context = run.OnePrompt();
  ErrorMaskMaker maker(context, {});
  std::vector<double> densities(kTriedErrors.size());  // of the layer under way
  const auto done = [&](int64_t, double error) {
    for (double& density : densities) density /= static_cast<double>(judge.Steps(trials.every));
    curves.push_back({.velocity_error = error, .densities = densities});
    std::ranges::fill(densities, 0);
    trials.layer_done();
  };
  return judge.Run({.doing = trials.doing,
                    .sources = context.layers,
                    .every = trials.every,
                    .source = [&](int64_t layer) -> std::unique_ptr<MaskSource> {
                      return std::make_unique<LayerTrial>(context, layer, maker, densities);
                    },
                    .begin = std::ssize(curves),
                    .done = done,
                    .seconds_left = trials.seconds_left},
                   run);
}

}  // namespace equitile
