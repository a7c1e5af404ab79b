// How a budget of error is shared between layers: more where an error matters less to the velocity
// of the whole step, or where it saves more blocks. Pure.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace equitile {

// The level that weights are chosen at: the error of `predict` unless somebody says otherwise.
constexpr double kWeighedError = 0.01;
// Those that a layer's blocks are counted at.
constexpr std::array<double, 5> kTriedErrors = {kWeighedError / 4, kWeighedError / 2, kWeighedError,
                                                2 * kWeighedError, 4 * kWeighedError};

// What the layer alone was found to do, everything else being dense.
struct LayerCurve {
  double velocity_error = 0;      // squared, of the whole step, at kWeighedError
  std::vector<double> densities;  // [errors] of the layer's blocks, at errors that ascend
};

// [layers] Weights with which layers keep at most as many blocks at kWeighedError as with 1
// everywhere, and the sum of their velocity errors, each in proportion to the square of the
// layer's own, is the least. errors: those of the densities, between which these follow the
// logarithm.
std::vector<double> ChooseErrorWeights(std::span<const LayerCurve> layers,
                                       std::span<const double> errors);

}  // namespace equitile
