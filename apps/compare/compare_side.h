// One side of `equitile compare --prompts`: a way to generate, from flags of generate.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/ranks.h"
#include "equitile/generate/request.h"
#include "equitile/kernel/linear/weight_type.h"

namespace equitile {

struct CompareSide {
  size_t index = 0;   // 0 is what the others are compared with
  std::string name;   // in reports: a; b, or b1, b2, ...
  std::string flags;  // as given
  GenerateRequest request;
  RanksRequest ranks;
  WeightType weights = WeightType::kF32;
};

// `a`, then all of `b`, which make frames of the same number and size. Throws InputError that names
// the side.
std::vector<CompareSide> MakeSides(const std::string& prompts, const std::string& a,
                                   const std::vector<std::string>& b);

// The first side with the same weights in memory; itself where there is none before it.
size_t OwnerOfWeights(const std::vector<CompareSide>& sides, size_t index);

}  // namespace equitile
