// Random numbers by index: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011). The number at an index depends on nothing but seed, stream and index, so threads
// and ranks may draw in any order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace equitile {

// The ten-round bijection of the paper: 128 random bits for each counter under each key.
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Streams of one seed are independent, and so are the four kinds of number at one index.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint32_t stream = 0)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(stream) {}

  uint32_t BitsAt(uint64_t index) const { return Block(index / 4, kBits)[index % 4]; }

  // [0, 1), a multiple of 2^-24.
  float UniformAt(uint64_t index) const {
    return static_cast<float>(Block(index / 4, kUniform)[index % 4] >> 8) * 0x1p-24f;
  }

  // Mean 0, variance 1, by Box-Muller in double; at most 6.67 in size since the radius comes from
  // 32 bits.
  float NormalAt(uint64_t index) const {
    const std::array<uint32_t, 4> block = Block(index / 4, kNormal);
    const size_t pair = index / 2 % 2 * 2;
    const double radius = std::sqrt(-2.0 * std::log((block[pair] + 1.0) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * (block[pair + 1] * 0x1p-32);
    return static_cast<float>(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
  }

  // [0, bound), bound >= 1. Scaled from 64 bits without rejection, so that an index costs one
  // block: a value's probability is off by less than bound / 2^64.
  uint64_t BelowAt(uint64_t index, uint64_t bound) const {
    const std::array<uint32_t, 4> block = Block(index / 2, kBelow);
    const size_t pair = index % 2 * 2;
    const uint64_t bits = uint64_t{block[pair]} << 32 | block[pair + 1];
    return MultiplyHigh(bits, bound);
  }

  // The same numbers one after another; each call takes the next index.
  float Uniform() { return UniformAt(next_++); }
  float Normal() { return NormalAt(next_++); }
  uint64_t Below(uint64_t bound) { return BelowAt(next_++, bound); }

 private:
  enum Kind : uint32_t { kBits, kUniform, kNormal, kBelow };

  static constexpr uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
    const uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
    const uint64_t cross1 = (a >> 32) * (b & 0xFFFFFFFF) + (low >> 32);
    const uint64_t cross2 = (a & 0xFFFFFFFF) * (b >> 32) + (cross1 & 0xFFFFFFFF);
    return (a >> 32) * (b >> 32) + (cross1 >> 32) + (cross2 >> 32);
  }

  std::array<uint32_t, 4> Block(uint64_t block, Kind kind) const {
    return Philox4x32(
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream_, kind}, key_);
  }

  std::array<uint32_t, 2> key_;
  uint32_t stream_;
  uint64_t next_ = 0;
};

}  // namespace equitile
