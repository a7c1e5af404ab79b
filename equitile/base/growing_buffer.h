// Memory that is asked for again and again, for as much as the work at hand needs: it grows to the
// largest request and stays there, so that a layer allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "equitile/base/aligned_buffer.h"

namespace equitile {

class GrowingBuffer {
 public:
  // Room for `count` objects, aligned for SIMD, contents undefined. Growing frees what was there:
  // valid until the next call.
  template <typename T>
  T* Get(int64_t count) {
    if (count > buffer_.size() / static_cast<int64_t>(sizeof(T))) Grow(count, sizeof(T));
    return Data<T>();
  }
  // What the last Get has made.
  template <typename T>
  T* Data() {
    static_assert(alignof(T) <= kBufferAlignment);
    return reinterpret_cast<T*>(buffer_.data());
  }
  template <typename T>
  const T* Data() const {
    return reinterpret_cast<const T*>(buffer_.data());
  }
  int64_t Bytes() const { return buffer_.size(); }

 private:
  void Grow(int64_t count, size_t object_bytes);

  AlignedBuffer<std::byte> buffer_;
};

}  // namespace equitile
