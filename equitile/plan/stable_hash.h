// A 64-bit hash that is the same on every machine, so that ranks can compare plans and masks and
// files can name them. Not for hostile input.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "equitile/pattern/block_mask.h"

namespace equitile {

class StableHash {
 public:
  void Add(uint64_t word) { state_ = Mix((state_ ^ word) * kMultiplier); }
  void Add(int64_t word) { Add(static_cast<uint64_t>(word)); }
  void Add(int32_t word) { Add(static_cast<int64_t>(word)); }
  void Add(std::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    for (char c : text) Add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  void Add(std::span<const int32_t> values) {
    Add(static_cast<uint64_t>(values.size()));
    for (int32_t value : values) Add(value);
  }
  uint64_t value() const { return Mix(state_ * kMultiplier); }

 private:
  // An odd constant with no pattern in its bits (the golden ratio's fraction); the shift feeds high
  // bits back into low ones.
  static constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;
  static constexpr uint64_t Mix(uint64_t x) { return x ^ (x >> 32); }

  uint64_t state_ = 0x2545f4914f6cdd1d;
};

// Of shape and bits. Four independent chains, since one multiply per word would wait for the one
// before.
uint64_t HashMask(const BlockMask& mask);

}  // namespace equitile
