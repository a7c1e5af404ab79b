#include "equitile/kernel/linear/weight_type.h"

#include "equitile/base/error.h"

namespace equitile {

std::string_view WeightTypeName(WeightType type) {
  return type == WeightType::kBF16 ? "bf16" : ComputeName(ComputeOf(type));
}

WeightType ParseWeightType(std::string_view name) {
  for (WeightType type : kWeightTypes) {
    if (WeightTypeName(type) == name) return type;
  }
  throw InputError("[kernel] type of weights '{}': not known; use f32, bf16, int16 or int8", name);
}

Compute ComputeOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kBF16:
      return Compute::kF32;
    case WeightType::kInt16:
      return Compute::kInt16;
    case WeightType::kInt8:
      return Compute::kInt8;
  }
  return Compute::kF32;
}

}  // namespace equitile
