// The extents of a tensor, outermost first: a small value without allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "equitile/base/error.h"

namespace equitile {

inline constexpr int kMaxRank = 6;  // [batch, channels, frames, height, width] and one to spare

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    for (int64_t extent : extents) Append(extent);
  }

  int Rank() const { return rank_; }
  int64_t operator[](int dim) const {
    EQ_DCHECK(dim >= 0 && dim < rank_, "dimension {} of {}", dim, rank_);
    return extents_[static_cast<size_t>(dim)];
  }
  int64_t Elements() const {  // 1 for rank 0
    int64_t elements = 1;
    for (int dim = 0; dim < rank_; ++dim) elements *= (*this)[dim];
    return elements;
  }

  void Append(int64_t extent) {
    EQ_CHECK(rank_ < kMaxRank, "more than {} dimensions", kMaxRank);
    EQ_CHECK(extent >= 0, "extent {}", extent);
    extents_[static_cast<size_t>(rank_++)] = extent;
  }
  void Set(int dim, int64_t extent) {
    EQ_CHECK(dim >= 0 && dim < rank_ && extent >= 0, "dimension {} of {}, extent {}", dim, rank_,
             extent);
    extents_[static_cast<size_t>(dim)] = extent;
  }

  std::string ToString() const {  // "[2, 3]"
    std::string text = "[";
    for (int dim = 0; dim < rank_; ++dim)
      text += fmt::format("{}{}", dim == 0 ? "" : ", ", (*this)[dim]);
    return text + "]";
  }

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> extents_{};  // 0 beyond rank_
  int rank_ = 0;
};

}  // namespace equitile
