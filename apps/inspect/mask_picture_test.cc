#include "apps/inspect/mask_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace equitile {
namespace {

BlockMask Diagonal(int64_t heads, int64_t q_blocks, int64_t kv_blocks) {
  BlockMask mask({.batch = 1, .heads = heads},
                 {.q_tokens = q_blocks * 16, .kv_tokens = kv_blocks * 16, .block_tokens = 16});
  for (int64_t q = 0; q < q_blocks; ++q) mask.Set(0, q, q * kv_blocks / q_blocks);
  return mask;
}

double Mean(const MaskPicture& picture) {
  return std::accumulate(picture.density.begin(), picture.density.end(), 0.0) /
         static_cast<double>(picture.density.size());
}

TEST(MaskPicture, SmallMasksAreShownBlockByBlock) {
  const BlockMask mask = Diagonal(1, 7, 5);
  const MaskPicture picture = MeanPicture({{&mask, 0}}, 64, 64);
  ASSERT_EQ(picture.rows, 7);
  ASSERT_EQ(picture.columns, 5);
  for (int64_t q = 0; q < 7; ++q) {
    for (int64_t kv = 0; kv < 5; ++kv) EXPECT_EQ(picture.At(q, kv), mask.Get(0, q, kv) ? 1.0 : 0.0);
  }
}

TEST(MaskPicture, LargeMasksKeepTheirProportionsAndDensity) {
  const BlockMask mask = Diagonal(1, 512, 128);
  const MaskPicture picture = MeanPicture({{&mask, 0}}, 64, 64);
  EXPECT_EQ(picture.rows, 64);
  EXPECT_EQ(picture.columns, 16);
  EXPECT_NEAR(Mean(picture), mask.Density(), 1e-12);
}

TEST(MaskPicture, AwkwardSizesStayWithinTheirLimits) {
  for (int64_t q_blocks : {1, 2, 65, 997}) {
    for (int64_t kv_blocks : {1, 3, 64, 1009}) {
      const BlockMask mask = BlockMask::Dense(
          {}, {.q_tokens = q_blocks * 16, .kv_tokens = kv_blocks * 16, .block_tokens = 16});
      const MaskPicture picture = MeanPicture({{&mask, 0}}, 61, 47);
      EXPECT_TRUE(picture.rows >= 1 && picture.rows <= 61);
      EXPECT_TRUE(picture.columns >= 1 && picture.columns <= 47);
      EXPECT_EQ(std::count(picture.density.begin(), picture.density.end(), 1.0),
                picture.rows * picture.columns);
    }
  }
}

TEST(MaskPicture, MeansOverLanes) {
  const BlockMask mask = Diagonal(4, 8, 8);  // only lane 0 keeps anything
  const MaskPicture picture = MeanPicture({{&mask, 0}, {&mask, 1}, {&mask, 2}, {&mask, 3}}, 64, 64);
  EXPECT_EQ(picture.At(3, 3), 0.25);
}

TEST(MaskPicture, DrawsTwoRowsPerLine) {
  const MaskPicture picture{.rows = 3, .columns = 2, .density = {1, 0, 1, 0.5, 0, 1}};
  EXPECT_EQ(DrawPicture(picture, Terminal{}), "█░\n █\n");
  EXPECT_EQ(DrawPicture(picture, Terminal{.unicode = false}), "#.\n #\n");
  EXPECT_NE(DrawPicture(picture, Terminal{.color = true}).find("\x1b[38;5;255m\x1b[48;5;255m▀"),
            std::string::npos);
}

TEST(MaskPicture, PaintsKeptDarkAndEnlarges) {
  const MaskPicture picture{.rows = 1, .columns = 2, .density = {1, 0}};
  GrayImage image = PaintPicture(picture, 9);
  EXPECT_EQ(image.height, 4);
  EXPECT_EQ(image.width, 8);
  EXPECT_EQ(image.At(3, 3), 0);
  EXPECT_EQ(image.At(3, 4), 255);
}

TEST(MaskPicture, ContactSheetHoldsEveryPicture) {
  for (int64_t count : {1, 2, 5, 12}) {
    GrayImage sheet =
        ContactSheet(std::vector<GrayImage>(static_cast<size_t>(count), GrayImage(3, 2, 7)));
    EXPECT_EQ(std::count(sheet.pixels.begin(), sheet.pixels.end(), 7), count * 6);
  }
}

}  // namespace
}  // namespace equitile
