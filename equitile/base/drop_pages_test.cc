#include "equitile/base/drop_pages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "equitile/base/aligned_buffer.h"

namespace equitile {
namespace {

// From sizes below a page to several; what lies beside stays.
TEST(DropPages, ZerosStayAndMemoryCanBeUsed) {
  for (int64_t size : {0, 1, 100, 4096, 70'000, 5'000'001}) {
    auto buffer = AlignedBuffer<char>::Zeroed(size + 2);
    buffer[0] = buffer[size + 1] = 'x';
    const std::span<char> inner = buffer.span().subspan(1, static_cast<size_t>(size));
    DropPages(std::as_writable_bytes(inner));
    EXPECT_EQ(std::count(inner.begin(), inner.end(), 0), size);
    EXPECT_EQ(buffer[0], 'x');
    EXPECT_EQ(buffer[size + 1], 'x');
    std::fill(inner.begin(), inner.end(), 'y');
    EXPECT_EQ(std::count(inner.begin(), inner.end(), 'y'), size);
  }
}

}  // namespace
}  // namespace equitile
