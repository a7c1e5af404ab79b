#include "equitile/search/choice/loss.h"

#include "equitile/base/error.h"

namespace equitile {

double LossOf(double error, double density, const LossDials& dials) {
  return error + dials.lambda * density;
}

size_t ChooseByLoss(std::span<const double> errors, std::span<const double> densities,
                    const LossDials& dials) {
  EQ_CHECK(errors.size() == densities.size() && errors.size() > 1);
  size_t best = 1;
  for (size_t i = 2; i < errors.size(); ++i) {
    if (LossOf(errors[i], densities[i], dials) < LossOf(errors[best], densities[best], dials))
      best = i;
  }
  return LossOf(errors[best], densities[best], dials) > dials.epsilon ? 0 : best;
}

}  // namespace equitile
