// The storage types of numbers, and scalar conversions between them. Arithmetic is always in f32;
// kernels convert vectors themselves and agree with these bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace equitile {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr int64_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
std::string_view DTypeName(DType dtype);  // "f32", "bf16", "f16"
DType ParseDType(std::string_view name);  // throws InputError

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <typename T>
concept StorageType = std::is_same_v<T, float> || std::is_same_v<T, Bf16> || std::is_same_v<T, F16>;

template <StorageType T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float>  ? DType::kF32
                                  : std::is_same_v<T, Bf16> ? DType::kBF16
                                                            : DType::kF16;

constexpr float ToFloat(float x) { return x; }
constexpr float ToFloat(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
constexpr float ToFloat(F16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t rest = x.bits & 0x7FFFu;
  if (rest >= 0x7C00) {
    const uint32_t quiet =
        rest > 0x7C00 ? 0x00400000 : 0;  // as processors convert a signalling NaN
    return std::bit_cast<float>(sign | 0x7F800000 | quiet | (rest & 0x3FF) << 13);
  }
  if (rest >= 0x0400) return std::bit_cast<float>(sign | ((rest << 13) + ((127 - 15) << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // a denormal is exact in f32
  return sign != 0 ? -magnitude : magnitude;
}

// Rounding to nearest, ties to even; a NaN stays one (quiet), with what fits of its payload.
template <StorageType T>
constexpr T FromFloat(float x);

template <>
constexpr float FromFloat<float>(float x) {
  return x;
}

template <>
constexpr Bf16 FromFloat<Bf16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(bits >> 16 | 0x0040)};
  // Half of the dropped part's unit less one, plus the bit that decides ties; a carry into the
  // exponent is the right result, up to infinity.
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

template <>
constexpr F16 FromFloat<F16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return {static_cast<uint16_t>(sign | 0x7E00 | (rest >> 13 & 0x3FF))};
  // 65520 is the tie between the largest half and what would be the next; it goes to even, that is
  // infinity.
  if (rest >= std::bit_cast<uint32_t>(65520.0f)) return {static_cast<uint16_t>(sign | 0x7C00)};
  if (rest < std::bit_cast<uint32_t>(0x1p-14f)) {
    // Denormal: adding 0.5 lines the last bit of a half (2^-24) up with the last bit of an f32 in
    // [0.5, 1), so the addition rounds as wanted.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return {static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)))};
  }
  const uint32_t rounded = rest + 0xFFF + (rest >> 13 & 1);
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - ((127 - 15) << 10)))};
}

}  // namespace equitile
