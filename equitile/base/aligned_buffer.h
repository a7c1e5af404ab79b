// Memory for numbers: aligned for SIMD, on huge pages where it is large, and an Error that names
// the size when there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace equitile {

// A cache line, and the widest vector load of any target.
inline constexpr size_t kBufferAlignment = 64;
// From here on a buffer starts on a huge page and asks for huge pages: below two of them the
// rounding would waste more than the saved TLB misses are worth.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;
inline constexpr size_t kHugePageThresholdBytes = 2 * kHugePageBytes;

namespace internal {
// `count` objects of `object_bytes` each; nullptr for none. Throws Error when they do not fit in
// memory.
void* AllocateAligned(int64_t count, size_t object_bytes, bool zeroed);
void FreeAligned(void* data);
}  // namespace internal

// Owns `size()` objects, contents undefined unless made by Zeroed.
template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static_assert(alignof(T) <= kBufferAlignment);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size) : AlignedBuffer(size, false) {}
  static AlignedBuffer Zeroed(int64_t size) { return AlignedBuffer(size, true); }

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  int64_t size() const { return size_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(T* data) const { internal::FreeAligned(data); }
  };

  AlignedBuffer(int64_t size, bool zeroed)
      : data_(static_cast<T*>(internal::AllocateAligned(size, sizeof(T), zeroed))), size_(size) {}

  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace equitile
