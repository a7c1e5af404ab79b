// Strided views of numbers that somebody else owns. They carry their dtype as a value: kernels take
// them at the border and switch once.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/range.h"
#include "equitile/tensor/dtype.h"
#include "equitile/tensor/shape.h"

namespace equitile {

using Strides =
    std::array<int64_t, kMaxRank>;  // in elements, one per dimension; may be 0 or negative

inline Strides ContiguousStrides(const Shape& shape) {
  Strides strides{};
  int64_t stride = 1;
  for (int dim = shape.Rank() - 1; dim >= 0; --dim) {
    strides[static_cast<size_t>(dim)] = stride;
    stride *= shape[dim];
  }
  return strides;
}

// Use through ConstView and View.
template <typename Void>
class BasicView {
  template <typename T>
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;

 public:
  BasicView() = default;
  BasicView(Void* data, DType dtype, const Shape& shape)
      : BasicView(data, dtype, shape, ContiguousStrides(shape)) {}
  BasicView(Void* data, DType dtype, const Shape& shape, const Strides& strides)
      : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {}
  template <typename T>
    requires StorageType<std::remove_const_t<T>>
  BasicView(T* data, const Shape& shape)
      : BasicView(data, kDTypeOf<std::remove_const_t<T>>, shape) {}
  template <typename Other>
    requires(std::is_const_v<Void> && !std::is_const_v<Other>)
  BasicView(const BasicView<Other>& other)
      : BasicView(other.Data(), other.dtype(), other.shape(), other.strides()) {}

  Void* Data() const { return data_; }
  template <StorageType T>
  Element<T>* DataAs() const {
    EQ_CHECK(dtype_ == kDTypeOf<T>, "a view of {} read as {}", DTypeName(dtype_),
             DTypeName(kDTypeOf<T>));
    return static_cast<Element<T>*>(data_);
  }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int Rank() const { return shape_.Rank(); }
  int64_t Extent(int dim) const { return shape_[dim]; }
  int64_t Stride(int dim) const { return strides_[static_cast<size_t>(dim)]; }
  int64_t Elements() const { return shape_.Elements(); }

  // Elements in order without gaps. Strides of extents 0 and 1 do not matter.
  bool IsContiguous() const {
    if (Elements() == 0) return true;
    int64_t stride = 1;
    for (int dim = Rank() - 1; dim >= 0; --dim) {
      if (Extent(dim) != 1 && Stride(dim) != stride) return false;
      stride *= Extent(dim);
    }
    return true;
  }

  // Offset in elements, and address, of the element at one index per dimension.
  template <typename... Index>
  int64_t Offset(Index... index) const {
    EQ_DCHECK(sizeof...(Index) == static_cast<size_t>(Rank()), "{} indices for rank {}",
              sizeof...(Index), Rank());
    int64_t offset = 0;
    size_t dim = 0;
    ((offset += static_cast<int64_t>(index) * strides_[dim++]), ...);
    return offset;
  }
  template <typename... Index>
  Void* Address(Index... index) const {
    return At(Offset(index...));
  }

  // One element as f32, converted; for borders and tests, not for inner loops.
  template <typename... Index>
  float Load(Index... index) const {
    const void* address = Address(index...);
    switch (dtype_) {
      case DType::kF32:
        return *static_cast<const float*>(address);
      case DType::kBF16:
        return ToFloat(*static_cast<const Bf16*>(address));
      case DType::kF16:
        return ToFloat(*static_cast<const F16*>(address));
    }
    return 0.0f;
  }
  template <typename... Index>
    requires(!std::is_const_v<Void>)
  void Store(float value, Index... index) const {
    void* address = Address(index...);
    switch (dtype_) {
      case DType::kF32:
        *static_cast<float*>(address) = value;
        break;
      case DType::kBF16:
        *static_cast<Bf16*>(address) = FromFloat<Bf16>(value);
        break;
      case DType::kF16:
        *static_cast<F16*>(address) = FromFloat<F16>(value);
        break;
    }
  }

  // The same dimensions, `range` of one of them.
  BasicView Slice(int dim, Range range) const {
    EQ_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= Extent(dim),
             "slice {}..{} of extent {}", range.begin, range.end, Extent(dim));
    BasicView view = *this;
    view.shape_.Set(dim, range.size());
    view.data_ = At(range.begin * Stride(dim));
    return view;
  }

  // One dimension less: the part at `index` of it.
  BasicView Select(int dim, int64_t index) const {
    EQ_CHECK(0 <= index && index < Extent(dim), "index {} of extent {}", index, Extent(dim));
    BasicView view(At(index * Stride(dim)), dtype_, Shape{}, Strides{});
    for (int d = 0; d < Rank(); ++d) {
      if (d == dim) continue;
      view.strides_[static_cast<size_t>(view.Rank())] = Stride(d);
      view.shape_.Append(Extent(d));
    }
    return view;
  }

  BasicView Transpose(int a, int b) const {
    BasicView view = *this;
    view.shape_.Set(a, Extent(b));
    view.shape_.Set(b, Extent(a));
    std::swap(view.strides_[static_cast<size_t>(a)], view.strides_[static_cast<size_t>(b)]);
    return view;
  }

  // Another shape over the same elements; contiguous views only.
  BasicView Reshape(const Shape& shape) const {
    EQ_CHECK(IsContiguous() && shape.Elements() == Elements(), "{} as {}", shape_.ToString(),
             shape.ToString());
    return BasicView(data_, dtype_, shape);
  }

 private:
  Void* At(int64_t offset) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return offset == 0 ? data_ : static_cast<Byte*>(data_) + offset * DTypeBytes(dtype_);
  }

  Void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  Strides strides_{};
};

using ConstView = BasicView<const void>;
using View = BasicView<void>;

}  // namespace equitile
