// Layers made sparse by error one at a time, in whole steps: what each does to the velocity, and
// how many blocks it keeps at several errors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "equitile/search/choice/error_weights.h"
#include "equitile/search/judge/calibration_run.h"
#include "equitile/search/judge/velocity_judge.h"

namespace equitile {

struct LayerTrials {
  std::string doing;  // for progress: "weighing errors of layers"
  int64_t every = 1;  // of the judge's steps, one in so many
  std::function<void()> layer_done;
  std::function<double(double part)> seconds_left;  // when so much of all is done
};

// Collective: the same on every rank. Goes on behind the layers that the curves, with densities at
// kTriedErrors, are there for. False: interrupted.
bool TryLayers(const LayerTrials& trials, const VelocityJudge& judge, CalibrationRun& run,
               std::vector<LayerCurve>& curves);

}  // namespace equitile
