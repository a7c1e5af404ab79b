#include "apps/inspect/pattern_picture.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>

#include "apps/cli/pattern_text.h"
#include "apps/inspect/pixel_text.h"

namespace equitile {
namespace {

PatternFile AllModes() {
  PatternFile file;
  file.grid = {3, 4, 4};
  std::vector<PatternHead> heads;
  for (HeadMode mode : kHeadModes) {
    PatternHead head{{mode, 1.5, {}}, 0.5, 0.01, {}, 0.9};
    if (mode == HeadMode::kStripes) head.pattern.columns = {{0, 4}, {8, 9}};
    heads.push_back(head);
  }
  file.ranges.push_back({0.5, 1, {heads, heads}});
  file.ranges.push_back({0, 0.5, {heads, heads}});
  return file;
}

TEST(PatternPicture, OneLinePerLayerOneSignPerHead) {
  const Terminal plain{.interactive = false, .color = false, .unicode = false, .columns = 80};
  EXPECT_EQ(DrawPattern(AllModes().ranges[0], plain), "   0 F - D M S o \n   1 F - D M S o \n");
  std::set<char> signs;
  for (HeadMode mode : kHeadModes) {
    signs.insert(ModeSign(mode));
    EXPECT_NE(DrawModeLegend(plain).find(HeadModeName(mode)), std::string::npos);
  }
  EXPECT_EQ(signs.size(), kHeadModes.size());
  const Terminal color{.interactive = true, .color = true, .unicode = true, .columns = 80};
  EXPECT_NE(DrawPattern(AllModes().ranges[0], color).find("\x1b[48;5;"), std::string::npos);
}

TEST(PatternPicture, EveryModeHasItsColorInThePictureAndInTheLegend) {
  const RgbImage image = PaintPattern(AllModes());
  ASSERT_EQ(std::ssize(image.pixels), image.height * image.width * 3);
  std::map<std::array<uint8_t, 3>, int64_t> count;
  for (size_t i = 0; i < image.pixels.size(); i += 3)
    ++count[{image.pixels[i], image.pixels[i + 1], image.pixels[i + 2]}];
  // Of cells of 20 x 20 some dots are the mode's sign. Four of them in the ranges, one in the
  // legend, there as dense as can be, but for skipped heads, which have one colour.
  int64_t in_ranges = 0, in_legend = 0, skipped = 0;
  for (const auto& [color, pixels] : count) {
    in_ranges += pixels > 4 * 300 && pixels <= 4 * 400 ? 1 : 0;
    in_legend += pixels > 300 && pixels <= 400 ? 1 : 0;
    skipped += pixels > 5 * 300 && pixels <= 5 * 400 && color[0] == 68 ? 1 : 0;
  }
  EXPECT_EQ(in_ranges, 5);
  EXPECT_EQ(in_legend, 5);
  EXPECT_EQ(skipped, 1);
}

TEST(PatternPicture, WordsStayInsideOfTheirBox) {
  RgbImage image{.height = 20, .width = 60, .pixels = std::vector<uint8_t>(20 * 60 * 3, 255)};
  const PixelText text;
  text.Draw("head 12", 5, 4, image);
  int64_t dark = 0;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      if (image.pixels[static_cast<size_t>((y * image.width + x) * 3)] == 255) continue;
      ++dark;
      EXPECT_TRUE(y >= 5 && y < 5 + text.Height() && x >= 4 && x < 4 + text.Width("head 12"));
    }
  }
  EXPECT_GT(dark, 200);
  text.Draw("cut off", 15, 50, image);
}

TEST(PatternPicture, ThePageNamesEverything) {
  const std::string page = PatternPage("a<b>&\"c\".json", AllModes());
  EXPECT_NE(page.find("a&lt;b>&amp;&quot;c&quot;.json"), std::string::npos);
  EXPECT_EQ(page.find("a<b>"), std::string::npos);
  EXPECT_NE(page.find("sigma 1 to 0.5"), std::string::npos);
  EXPECT_NE(page.find("layer 1, head 4: stripes, 5 tokens in 2 stripes"), std::string::npos);
  EXPECT_NE(page.find("theta 0.9"), std::string::npos);
  size_t cells = 0;
  for (size_t at = page.find("<td "); at != std::string::npos; at = page.find("<td ", at + 1))
    ++cells;
  EXPECT_EQ(cells, 2u * 2 * 6);
}

TEST(PatternPicture, SizesHaveUnits) {
  EXPECT_EQ(SizeText({HeadMode::kDiagonal, 1.5, {}}), "1.5 frames");
  EXPECT_EQ(SizeText({HeadMode::kMultiDiagonal, 12, {}}), "12 places");
  EXPECT_EQ(SizeText({HeadMode::kStripes, 0, {{0, 4}, {8, 9}}}), "5 tokens in 2 stripes");
  EXPECT_EQ(SizeText({HeadMode::kFull, 0, {}}), "");
}

}  // namespace
}  // namespace equitile
