// How the weights of a linear layer lie in memory, which also says how it computes.
#pragma once

#include <cstdint>
#include <string_view>

#include "equitile/kernel/compute.h"

namespace equitile {

// f32 and bf16 are multiplied in f32. Integers carry a scale per output and are multiplied with
// tokens that are rounded likewise.
enum class WeightType : uint8_t { kF32, kBF16, kInt16, kInt8 };

inline constexpr WeightType kWeightTypes[] = {WeightType::kF32, WeightType::kBF16,
                                              WeightType::kInt16, WeightType::kInt8};

std::string_view WeightTypeName(WeightType type);   // "f32", "bf16", "int16", "int8"
WeightType ParseWeightType(std::string_view name);  // throws InputError

Compute ComputeOf(WeightType type);

constexpr int64_t WeightBytes(WeightType type) {
  return type == WeightType::kF32 ? 4 : type == WeightType::kInt8 ? 1 : 2;
}

constexpr bool IsInteger(WeightType type) {
  return type == WeightType::kInt16 || type == WeightType::kInt8;
}

}  // namespace equitile
