#include "equitile/search/choice/error_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "equitile/base/rng.h"

namespace equitile {
namespace {

constexpr double kErrors[] = {kWeighedError / 4, kWeighedError, 4 * kWeighedError};

// Density falls by `slope` per octave of error.
LayerCurve CurveOf(double velocity_error, double middle, double slope) {
  return {.velocity_error = velocity_error,
          .densities = {middle + 2 * slope, middle, middle - 2 * slope}};
}

double DensityOf(const LayerCurve& layer, double weight) {
  return layer.densities[1] - (layer.densities[1] - layer.densities[2]) / 2 * std::log2(weight);
}

TEST(ErrorWeights, EqualLayersHaveEqualWeights) {
  const std::vector<LayerCurve> layers(4, CurveOf(0.3, 0.5, 0.1));
  for (const double weight : ChooseErrorWeights(layers, kErrors)) EXPECT_NEAR(weight, 1, 0.1);
}

// Where densities fall with the logarithm of the error, the least sum of squares has
// weight^2 * velocity error / slope the same in all layers.
TEST(ErrorWeights, MoreWhereItHarmsLessOrSavesMore) {
  const std::vector<LayerCurve> layers = {CurveOf(0.4, 0.5, 0.1), CurveOf(0.1, 0.5, 0.1),
                                          CurveOf(0.4, 0.5, 0.2)};
  const std::vector<double> weights = ChooseErrorWeights(layers, kErrors);
  EXPECT_NEAR(weights[1] / weights[0], 2, 0.2);
  EXPECT_NEAR(weights[2] / weights[0], std::sqrt(2), 0.2);
}

// No weights of the grid keep as few blocks with less error.
TEST(ErrorWeights, AreAsGoodAsTheBestOfAll) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Rng rng(seed);
    std::vector<LayerCurve> layers;
    for (int i = 0; i < 3; ++i)
      layers.push_back(CurveOf(rng.Uniform() + 0.01, 0.5, 0.2 * rng.Uniform()));
    const auto totals = [&](const double* weights) {
      double density = 0, error = 0;
      for (size_t i = 0; i < 3; ++i) {
        density += DensityOf(layers[i], weights[i]);
        error += layers[i].velocity_error * weights[i] * weights[i];
      }
      return std::pair(density, error);
    };
    const std::vector<double> chosen = ChooseErrorWeights(layers, kErrors);
    const auto [density, error] = totals(chosen.data());
    EXPECT_LE(density, 1.5 + 1e-4) << "as few blocks as weights of 1 keep";
    EXPECT_GT(density, 1.5 - 0.2 / 8) << "and hardly fewer";
    double least = std::numeric_limits<double>::infinity();
    double tried[3];
    for (int a = -16; a <= 16; ++a) {
      for (int b = -16; b <= 16; ++b) {
        for (int c = -16; c <= 16; ++c) {
          tried[0] = std::exp2(a / 8.0);
          tried[1] = std::exp2(b / 8.0);
          tried[2] = std::exp2(c / 8.0);
          const auto [blocks, harm] = totals(tried);
          if (blocks <= density + 1e-4) least = std::min(least, harm);
        }
      }
    }
    EXPECT_LE(error, least * 1.001) << seed;
  }
}

// A layer that harms nothing takes all that it may, one that saves nothing as little.
TEST(ErrorWeights, StayWithinWhatWasMeasured) {
  const std::vector<LayerCurve> layers = {CurveOf(0, 0.5, 0.1), CurveOf(1, 0.5, 0.1),
                                          CurveOf(1, 0.5, 0)};
  const std::vector<double> weights = ChooseErrorWeights(layers, kErrors);
  EXPECT_EQ(weights[0], 4);
  EXPECT_EQ(weights[2], 0.25);
}

}  // namespace
}  // namespace equitile
