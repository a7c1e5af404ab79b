// Sparse-vDiT's rule (arXiv 2506.03065, Eq. 2): which mode a head takes, from the error and the
// sparsity of each. Pure.
#pragma once

#include <cstddef>
#include <span>

namespace equitile {

struct LossDials {
  double lambda = 0.5;
  double epsilon = 1;
};

// L_i = error_i + lambda (1 - S_i), with S_i = 1 - density_i.
double LossOf(double error, double density, const LossDials& dials);

// The option with the least loss, the first of equal ones; 0 (full) if every loss but its own is
// above epsilon. errors, densities: [options], full first.
size_t ChooseByLoss(std::span<const double> errors, std::span<const double> densities,
                    const LossDials& dials);

}  // namespace equitile
