// Layers made sparse by error one at a time, in whole steps: what each does to the velocity, and
// how many blocks it keeps at several errors.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/search/calibration_run.h"
#include "equitile/search/error_weights.h"
#include "equitile/search/velocity_judge.h"

namespace equitile {

// Collective: the same on every rank. [layers], densities at kTriedErrors; empty: interrupted.
// every: of the judge's steps, one in so many.
std::vector<LayerCurve> TryLayers(const VelocityJudge& judge, int64_t every, CalibrationRun& run);

}  // namespace equitile
