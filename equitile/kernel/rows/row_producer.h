// Inputs that are made where they are needed: the place where norms, modulation and rotation are
// fused with what reads their rows, instead of being passes of their own over memory.
#pragma once

#include <cstdint>

#include "equitile/base/function_ref.h"

namespace equitile {

// Writes rows [count][width] of tokens first_token, first_token + 1, ... of a lane; width is
// head_dim for attention and the number of inputs for a linear layer, whose only lane is 0. Called
// from several threads at once, for any tokens in any order; by linear layers once for each token.
using RowProducer =
    FunctionRef<void(int64_t lane, int64_t first_token, int64_t count, float* rows)>;

}  // namespace equitile
