#include "equitile/io/frames/png.h"

#include <gtest/gtest.h>
#include <png.h>

#include "equitile/base/error.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

TEST(Png, ReadsBackWhatItWrote) {
  const TempFolder folder;
  for (const auto& [height, width] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {257, 1}, {64, 100}}) {
    GrayImage image(height, width, 255);
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) image.At(y, x) = static_cast<uint8_t>(y * 31 + x * 7);
    }
    WritePng(folder / "a.png", image);

    png_image png{};
    png.version = PNG_IMAGE_VERSION;
    ASSERT_NE(png_image_begin_read_from_file(&png, (folder / "a.png").c_str()), 0) << png.message;
    EXPECT_EQ(png.height, height);
    EXPECT_EQ(png.width, width);
    png.format = PNG_FORMAT_GRAY;
    std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(png));
    ASSERT_NE(png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr), 0) << png.message;
    EXPECT_EQ(pixels, image.pixels);
  }
  EXPECT_THROW(WritePng(folder / "missing" / "a.png", GrayImage(1, 1, 0)), InputError);
}

}  // namespace
}  // namespace equitile
