#include "equitile/base/base64.h"

#include <gtest/gtest.h>

#include <vector>

namespace equitile {
namespace {

TEST(Base64, ThereAndBack) {
  std::vector<uint8_t> bytes;
  for (int i = 0; i < 260; ++i) {
    const std::string text = Base64(bytes);
    EXPECT_EQ(text.size() % 4, 0u);
    EXPECT_EQ(DecodeBase64(text), std::string(bytes.begin(), bytes.end()));
    bytes.push_back(static_cast<uint8_t>(i * 37));
  }
  EXPECT_EQ(Base64(std::vector<uint8_t>{'f', 'o', 'o', 'b'}), "Zm9vYg==");
  EXPECT_EQ(DecodeBase64("Zm9vYg"), "foob");
  EXPECT_EQ(DecodeBase64("Zm9v Yg"), std::nullopt);
}

}  // namespace
}  // namespace equitile
