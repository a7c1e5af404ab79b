// A tensor as a checkpoint holds it: a name, a type, a shape, and bytes that belong to a mapped
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/tensor/dtype.h"
#include "equitile/tensor/shape.h"
#include "equitile/tensor/tensor.h"
#include "equitile/tensor/view.h"

namespace equitile {

// All types that a safetensors file may hold. Kernels compute with kF32, kBF16 and kF16 only.
enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64,
  kF4,
  kF6E2M3,
  kF6E3M2,
};

std::string_view StoredTypeName(StoredType type);  // as in the file: "BF16"
int64_t StoredTypeBits(StoredType type);
std::optional<StoredType> ParseStoredType(std::string_view name);
std::optional<DType> DTypeOf(StoredType type);  // nothing for what kernels do not compute with

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;        // outermost first; [] is one element; any rank
  std::span<const std::byte> bytes;  // little-endian, dense; at any alignment
  std::string_view file;             // for messages; lives as long as what was opened

  int64_t Elements() const;
  std::string ShapeText() const;  // "[2, 3]"

  // F32, BF16 or F16; throws InputError, naming file and tensor, for any other type.
  DType FloatType() const;
  // Throws InputError, with what was found and what is expected.
  void CheckShape(const Shape& expected) const;
  // Throws InputError where a value is NaN or infinite, with its position. Floats only.
  void CheckFinite() const;

  // Copies, converted. Floats to f32 (rank at most kMaxRank); I64 as they are. Throw InputError for
  // other types.
  Tensor ToF32() const;
  std::vector<float> Floats() const;  // any rank
  std::vector<int64_t> Integers() const;
};

// A stored tensor as a matrix that kernels may read: in place, or copied where the file does not
// align it. The tensor's bytes must outlive it.
class StoredMatrix {
 public:
  // rows x columns elements, whatever the stored shape. Throws InputError unless they are floats.
  StoredMatrix(const StoredTensor& tensor, int64_t rows, int64_t columns);

  const ConstView& view() const { return view_; }

 private:
  AlignedBuffer<std::byte> copy_;
  ConstView view_;
};

}  // namespace equitile
