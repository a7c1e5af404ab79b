// What ranks agree on before they rely on each other: two that were started with different flags or
// files would wait for each other for ever, or make a video of two halves.
#pragma once

#include <map>
#include <string>

#include "equitile/comm/communicator.h"
#include "equitile/generate/recipe.h"
#include "equitile/generate/request.h"
#include "equitile/kernel/linear/weight_type.h"

namespace equitile {

// Collective, and before anything else that is. Settles what only running ranks know, in a copy of
// the recipe: their number and the arithmetic of their SIMD targets. Throws InputError on
// every rank where they differ in a field, in the prompts or in `also` (name -> value); seeds are
// rank 0's, whatever the others drew. `of` tells requests apart where there are several: " of --a".
Recipe AgreeOnRequest(Communicator& comm, const GenerateRequest& request,
                      std::map<std::string, std::string> also = {}, const std::string& of = "");

// Rank 0's: nodes may have different amounts of free memory. Collective.
WeightType AgreeOnWeights(Communicator& comm, WeightType weights);

}  // namespace equitile
