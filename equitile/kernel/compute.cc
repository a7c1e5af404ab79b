#include "equitile/kernel/compute.h"

#include "equitile/base/error.h"

namespace equitile {

std::string_view ComputeName(Compute compute) {
  switch (compute) {
    case Compute::kF32:
      return "f32";
    case Compute::kInt16:
      return "int16";
    case Compute::kInt8:
      return "int8";
  }
  return "?";
}

Compute ParseCompute(std::string_view name) {
  for (Compute compute : {Compute::kF32, Compute::kInt16, Compute::kInt8}) {
    if (ComputeName(compute) == name) return compute;
  }
  throw InputError("[kernel] unknown arithmetic '{}'; use f32, int16 or int8", name);
}

}  // namespace equitile
