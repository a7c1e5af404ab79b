#include "equitile/search/choice/error_weights.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/search/choice/budget.h"

namespace equitile {
namespace {

// Weights from a quarter to four, eight to an octave: beyond, one layer's error was never measured.
constexpr int kStepsPerOctave = 8, kOctaves = 2;

double DensityAt(const LayerCurve& layer, std::span<const double> errors, double error) {
  const auto after = std::ranges::upper_bound(errors, error);
  if (after == errors.begin()) return layer.densities.front();
  if (after == errors.end()) return layer.densities.back();
  const auto i = static_cast<size_t>(after - errors.begin());
  const double part = std::log(error / errors[i - 1]) / std::log(errors[i] / errors[i - 1]);
  return layer.densities[i - 1] + part * (layer.densities[i] - layer.densities[i - 1]);
}

}  // namespace

std::vector<double> ChooseErrorWeights(std::span<const LayerCurve> layers,
                                       std::span<const double> errors) {
  std::vector<double> weights;
  for (int step = -kOctaves * kStepsPerOctave; step <= kOctaves * kStepsPerOctave; ++step)
    weights.push_back(std::exp2(static_cast<double>(step) / kStepsPerOctave));
  std::vector<BudgetItem> items;
  BudgetTarget target{.kind = BudgetTarget::Kind::kBlocks, .value = 0};
  for (const LayerCurve& layer : layers) {
    EQ_CHECK(!errors.empty() && layer.densities.size() == errors.size());
    BudgetItem item{.layer = items.size(), .options = {}};
    for (const double weight : weights) {
      const double density = DensityAt(layer, errors, weight * kWeighedError);
      item.options.push_back({.error = layer.velocity_error * weight * weight,
                              .seconds = density,
                              .blocks = density});
    }
    items.push_back(std::move(item));
    target.value += DensityAt(layer, errors, kWeighedError);
  }
  std::vector<double> chosen;
  for (const size_t option : SpendBudget(items, target).options)
    chosen.push_back(std::round(1e4 * weights[option]) / 1e4);
  return chosen;
}

}  // namespace equitile
