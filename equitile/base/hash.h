// Hashes that are the same on every machine: ranks compare them, and files store them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace equitile {

// FNV-1a, 64 bits. `seed` continues an earlier hash.
constexpr uint64_t kFnvOffset = 0xcbf29ce484222325;
inline uint64_t Fnv1a64(std::span<const std::byte> bytes, uint64_t seed = kFnvOffset) {
  uint64_t hash = seed;
  for (std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return hash;
}
inline uint64_t Fnv1a64(std::string_view text, uint64_t seed = kFnvOffset) {
  return Fnv1a64(std::as_bytes(std::span(text)), seed);
}

// A bijection of 64 bits in which every input bit reaches every output bit (the finaliser of
// SplitMix64).
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A hash over a sequence of values, eight bytes a step. Values enter as numbers, not as memory, so
// byte order does not matter; order and number of values do.
class Hasher {
 public:
  template <typename T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  Hasher& Add(T value) {
    ++count_;
    state_ = MixBits((state_ ^ static_cast<uint64_t>(value)) + 0x9e3779b97f4a7c15);
    return *this;
  }
  template <typename T>
    requires requires(const T& value, Hasher& hasher) { value.AddTo(hasher); }
  Hasher& Add(const T& value) {  // a value that knows its parts
    value.AddTo(*this);
    return *this;
  }
  Hasher& Add(double value) {  // by its bits: 0.0 and -0.0 differ
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return Add(bits);
  }
  Hasher& Add(float value) { return Add(static_cast<double>(value)); }
  Hasher& Add(std::string_view text) {
    Add(text.size());
    return Add(Fnv1a64(text));
  }
  template <typename T>
  Hasher& Add(std::span<T> values) {
    Add(values.size());
    for (const T& value : values) Add(value);
    return *this;
  }

  uint64_t Digest() const { return MixBits(state_ + count_); }

 private:
  uint64_t state_ = 0x2545f4914f6cdd1d;
  uint64_t count_ = 0;
};

}  // namespace equitile
