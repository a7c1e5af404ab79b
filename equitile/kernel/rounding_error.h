// What rounding the rows of a matrix to integers costs, before anything is packed: what decides
// which matrices may have few bits.
#pragma once

#include <span>

#include "equitile/kernel/compute.h"
#include "equitile/tensor/view.h"

namespace equitile {

// The relative L2 error of matrices [out, in] that are rounded as packed weights are, a scale per
// output: of the product with x whose numbers are independent and of one size, too. Looks at 64
// rows of each matrix, evenly spaced: an input whose weights are large is large in all of them. NaN
// where a number is not finite, 0 for zeros.
double RoundingError(std::span<const ConstView> matrices, Compute compute);

}  // namespace equitile
