// The one half-open range type.
#pragma once

#include <cstdint>

namespace equitile {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool Contains(int64_t i) const { return begin <= i && i < end; }
  friend bool operator==(const Range&, const Range&) = default;
};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// Part `part` of `parts` of [0, total): sizes differ by at most one, nothing has to divide.
constexpr Range EvenPart(int64_t total, int64_t part, int64_t parts) {
  return {part * total / parts, (part + 1) * total / parts};
}

}  // namespace equitile
