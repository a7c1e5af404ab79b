#include "equitile/base/growing_buffer.h"

#include <gtest/gtest.h>

#include <limits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

bool IsAligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kBufferAlignment == 0;
}

TEST(GrowingBuffer, GrowsToTheLargestRequestAndStaysThere) {
  GrowingBuffer buffer;
  EXPECT_EQ(buffer.Bytes(), 0);
  EXPECT_EQ(buffer.Get<float>(0), nullptr);
  int64_t largest = 0;
  for (const int64_t count : {1, 17, 3, 1009, 1008, 0, 100000, 7}) {
    const int64_t before = buffer.Bytes();
    float* data = buffer.Get<float>(count);
    EXPECT_TRUE(IsAligned(data));
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i);
    largest = std::max(largest, count * int64_t{sizeof(float)});
    EXPECT_EQ(buffer.Bytes(), largest);
    if (before == buffer.Bytes()) EXPECT_EQ(buffer.Data<float>(), data);
  }
}

// What lies in it may be of another type every time; only bytes count.
TEST(GrowingBuffer, CountsBytesWhateverTheType) {
  GrowingBuffer buffer;
  double* doubles = buffer.Get<double>(10);
  EXPECT_EQ(buffer.Bytes(), 80);
  EXPECT_EQ(static_cast<void*>(buffer.Get<std::byte>(80)), static_cast<void*>(doubles));
  EXPECT_EQ(static_cast<void*>(buffer.Get<float>(20)), static_cast<void*>(doubles));
  buffer.Get<std::byte>(81);
  EXPECT_EQ(buffer.Bytes(), 81);
  buffer.Get<float>(20);
  EXPECT_EQ(buffer.Bytes(), 81);
  buffer.Get<float>(21);
  EXPECT_EQ(buffer.Bytes(), 84);
}

TEST(GrowingBuffer, TooMuchIsAnErrorAndLeavesItUsable) {
  GrowingBuffer buffer;
  EXPECT_THROW(buffer.Get<double>(std::numeric_limits<int64_t>::max() / 4), Error);
  EXPECT_NE(buffer.Get<double>(4), nullptr);
}

}  // namespace
}  // namespace equitile
