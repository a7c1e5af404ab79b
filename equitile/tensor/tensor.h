// Numbers that own their memory: contiguous, aligned, move-only. Everything else is a view.
#pragma once

#include <cstddef>
#include <utility>

#include "equitile/base/aligned_buffer.h"
#include "equitile/tensor/view.h"

namespace equitile {

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape)  // contents undefined
      : Tensor(dtype, shape, AlignedBuffer<std::byte>(shape.Elements() * DTypeBytes(dtype))) {}
  static Tensor Zeros(DType dtype, const Shape& shape) {
    return Tensor(dtype, shape,
                  AlignedBuffer<std::byte>::Zeroed(shape.Elements() * DTypeBytes(dtype)));
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t Elements() const { return shape_.Elements(); }

  View view() { return View(buffer_.data(), dtype_, shape_); }
  ConstView view() const { return ConstView(buffer_.data(), dtype_, shape_); }
  operator View() { return view(); }
  operator ConstView() const { return view(); }

  template <StorageType T>
  T* DataAs() {
    return view().template DataAs<T>();
  }
  template <StorageType T>
  const T* DataAs() const {
    return view().template DataAs<T>();
  }

 private:
  Tensor(DType dtype, const Shape& shape, AlignedBuffer<std::byte> buffer)
      : buffer_(std::move(buffer)), dtype_(dtype), shape_(shape) {}

  AlignedBuffer<std::byte> buffer_;
  DType dtype_ = DType::kF32;
  Shape shape_{0};
};

}  // namespace equitile
