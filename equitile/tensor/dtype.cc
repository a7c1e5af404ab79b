#include "equitile/tensor/dtype.h"

#include "equitile/base/error.h"

namespace equitile {

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

DType ParseDType(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  throw InputError("[tensor] dtype '{}': not known; use f32, bf16 or f16", name);
}

}  // namespace equitile
