#include "equitile/io/arrays/stored_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct TypeRow {
  StoredType type;
  std::string_view name;
  int64_t bits;
};

constexpr std::array<TypeRow, 22> kTypes = {{
    {StoredType::kBool, "BOOL", 8},
    {StoredType::kU8, "U8", 8},
    {StoredType::kI8, "I8", 8},
    {StoredType::kF8E4M3, "F8_E4M3", 8},
    {StoredType::kF8E5M2, "F8_E5M2", 8},
    {StoredType::kF8E8M0, "F8_E8M0", 8},
    {StoredType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {StoredType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {StoredType::kI16, "I16", 16},
    {StoredType::kU16, "U16", 16},
    {StoredType::kF16, "F16", 16},
    {StoredType::kBF16, "BF16", 16},
    {StoredType::kI32, "I32", 32},
    {StoredType::kU32, "U32", 32},
    {StoredType::kF32, "F32", 32},
    {StoredType::kI64, "I64", 64},
    {StoredType::kU64, "U64", 64},
    {StoredType::kF64, "F64", 64},
    {StoredType::kC64, "C64", 64},
    {StoredType::kF4, "F4", 4},
    {StoredType::kF6E2M3, "F6_E2M3", 6},
    {StoredType::kF6E3M2, "F6_E3M2", 6},
}};

const TypeRow& RowOf(StoredType type) { return kTypes[static_cast<size_t>(type)]; }

static_assert([] {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].type != static_cast<StoredType>(i)) return false;
  }
  return true;
}());

template <typename T>
void Convert(std::span<const std::byte> bytes, float* out) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = ToFloat(value);
  }
}

void ConvertFloats(const StoredTensor& tensor, float* out) {
  switch (tensor.FloatType()) {
    case DType::kF32:
      if (!tensor.bytes.empty()) std::memcpy(out, tensor.bytes.data(), tensor.bytes.size());
      break;
    case DType::kBF16:
      Convert<Bf16>(tensor.bytes, out);
      break;
    case DType::kF16:
      Convert<F16>(tensor.bytes, out);
      break;
  }
}

// The first element whose exponent bits are all set (NaN or infinite), or -1.
template <typename Bits>
int64_t FirstNonFinite(std::span<const std::byte> bytes, Bits exponent) {
  // Whole chunks first, without a branch per element: weights are checked while they are loaded.
  constexpr size_t kChunk = 4096;
  const size_t count = bytes.size() / sizeof(Bits);
  const auto load = [&](size_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    return bits;
  };
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t end = std::min(count, begin + kChunk);
    bool bad = false;
    for (size_t i = begin; i < end; ++i) bad |= (load(i) & exponent) == exponent;
    for (size_t i = begin; bad && i < end; ++i) {
      if ((load(i) & exponent) == exponent) return static_cast<int64_t>(i);
    }
  }
  return -1;
}

std::string Index(std::span<const int64_t> shape, int64_t flat) {
  std::vector<int64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    index[dim] = flat % shape[dim];
    flat /= shape[dim];
  }
  return fmt::format("[{}]", fmt::join(index, ", "));
}

}  // namespace

std::string_view StoredTypeName(StoredType type) { return RowOf(type).name; }
int64_t StoredTypeBits(StoredType type) { return RowOf(type).bits; }

std::optional<StoredType> ParseStoredType(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::optional<DType> DTypeOf(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return DType::kF32;
    case StoredType::kBF16:
      return DType::kBF16;
    case StoredType::kF16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

int64_t StoredTensor::Elements() const {
  int64_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  return elements;
}

std::string StoredTensor::ShapeText() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

DType StoredTensor::FloatType() const {
  const std::optional<DType> dtype = DTypeOf(type);
  if (!dtype) {
    throw InputError("[io] {}: tensor '{}' has type {}; F32, BF16 or F16 is needed", file, name,
                     StoredTypeName(type));
  }
  return *dtype;
}

void StoredTensor::CheckShape(const Shape& expected) const {
  bool equal = shape.size() == static_cast<size_t>(expected.Rank());
  for (int dim = 0; equal && dim < expected.Rank(); ++dim) {
    equal = shape[static_cast<size_t>(dim)] == expected[dim];
  }
  if (!equal) {
    throw InputError("[io] {}: tensor '{}' has shape {}; expected {}", file, name, ShapeText(),
                     expected.ToString());
  }
}

void StoredTensor::CheckFinite() const {
  int64_t at = -1;
  switch (FloatType()) {
    case DType::kF32:
      at = FirstNonFinite<uint32_t>(bytes, 0x7F800000);
      break;
    case DType::kBF16:
      at = FirstNonFinite<uint16_t>(bytes, 0x7F80);
      break;
    case DType::kF16:
      at = FirstNonFinite<uint16_t>(bytes, 0x7C00);
      break;
  }
  if (at >= 0) {
    throw InputError("[io] {}: tensor '{}' holds NaN or infinity at {}; weights must be finite",
                     file, name, Index(shape, at));
  }
}

Tensor StoredTensor::ToF32() const {
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    throw InputError("[io] {}: tensor '{}' has {} dimensions; at most {} are supported", file, name,
                     shape.size(), kMaxRank);
  }
  Shape extents;
  for (int64_t extent : shape) extents.Append(extent);
  Tensor tensor(DType::kF32, extents);
  ConvertFloats(*this, tensor.DataAs<float>());
  return tensor;
}

std::vector<float> StoredTensor::Floats() const {
  std::vector<float> values(static_cast<size_t>(Elements()));
  ConvertFloats(*this, values.data());
  return values;
}

std::vector<int64_t> StoredTensor::Integers() const {
  if (type != StoredType::kI64) {
    throw InputError("[io] {}: tensor '{}' has type {}; I64 is needed", file, name,
                     StoredTypeName(type));
  }
  std::vector<int64_t> values(static_cast<size_t>(Elements()));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

StoredMatrix::StoredMatrix(const StoredTensor& tensor, int64_t rows, int64_t columns) {
  const DType dtype = tensor.FloatType();
  EQ_CHECK(rows * columns == tensor.Elements(), "{} x {} of tensor '{}'", rows, columns,
           tensor.name);
  const void* data = tensor.bytes.data();
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(DTypeBytes(dtype)) != 0) {
    copy_ = AlignedBuffer<std::byte>(static_cast<int64_t>(tensor.bytes.size()));
    std::memcpy(copy_.data(), data, tensor.bytes.size());
    data = copy_.data();
  }
  view_ = ConstView(data, dtype, {rows, columns});
}

}  // namespace equitile
