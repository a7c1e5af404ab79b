#include "equitile/base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "equitile/base/error.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EQUITILE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define EQUITILE_SANITIZED
#endif
#endif

namespace equitile {
namespace {

bool IsAligned(const void* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

TEST(AlignedBuffer, EverySizeIsAligned) {
  for (int64_t size : {1, 3, 15, 16, 17, 1021, 65537}) {
    AlignedBuffer<float> buffer(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_TRUE(IsAligned(buffer.data(), kBufferAlignment)) << size;
    std::ranges::fill(buffer.span(), 1.0f);
  }
}

TEST(AlignedBuffer, LargeOnesStartOnAHugePage) {
  const int64_t bytes = static_cast<int64_t>(kHugePageThresholdBytes);
  AlignedBuffer<std::byte> buffer(bytes);
  EXPECT_TRUE(IsAligned(buffer.data(), kHugePageBytes));
  EXPECT_TRUE(IsAligned(AlignedBuffer<std::byte>(bytes + 1).data(), kHugePageBytes));
}

TEST(AlignedBuffer, ZeroedIsZero) {
  for (int64_t size : {1, 1000, 3'000'000}) {
    {  // so that the allocator has something other than zeros to hand out
      AlignedBuffer<int32_t> dirty(size);
      std::ranges::fill(dirty.span(), -1);
    }
    const auto buffer = AlignedBuffer<int32_t>::Zeroed(size);
    EXPECT_TRUE(std::ranges::all_of(buffer.span(), [](int32_t x) { return x == 0; })) << size;
  }
}

TEST(AlignedBuffer, EmptyAndMoved) {
  AlignedBuffer<double> none;
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(AlignedBuffer<double>(0).data(), nullptr);

  AlignedBuffer<double> a(7);
  const double* data = a.data();
  AlignedBuffer<double> b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.size(), 7);
  EXPECT_EQ(a.size(), 0);  // NOLINT: what is left of a moved buffer is empty
  none = std::move(b);
  EXPECT_EQ(none.data(), data);
  EXPECT_EQ(b.data(), nullptr);  // NOLINT
}

TEST(AlignedBuffer, FailureNamesTheSize) {
  const int64_t count = int64_t{1} << 61;
  try {
    AlignedBuffer<double> buffer(count);
    FAIL() << "2^64 bytes were allocated";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("2305843009213693952"), std::string::npos)
        << error.what();
  }
#ifndef EQUITILE_SANITIZED  // whose allocators end the process instead of returning nothing
  EXPECT_THROW(AlignedBuffer<std::byte>(int64_t{1} << 55), Error);
#endif
}

}  // namespace
}  // namespace equitile
