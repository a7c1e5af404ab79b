// The arithmetic of a kernel: plain f32, or operands rounded to integers whose products are summed
// exactly. A choice of the user: it decides bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace equitile {

enum class Compute : uint8_t { kF32, kInt16, kInt8 };

std::string_view ComputeName(Compute compute);  // "f32", "int16", "int8"
Compute ParseCompute(std::string_view name);    // throws InputError

}  // namespace equitile
