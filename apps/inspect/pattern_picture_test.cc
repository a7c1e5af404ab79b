#include "apps/inspect/pattern_picture.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "apps/cli/pattern_text.h"

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

TEST(PatternPicture, EveryModeHasItsColorInThePicture) {
  const RgbImage image = PaintPattern(AllModes());
  EXPECT_EQ(image.height, 2 * 15 + 1);
  EXPECT_EQ(image.width, 2 * (6 * 15 + 1) + 12);
  const auto at = [&](int64_t y, int64_t x) {
    const uint8_t* pixel = &image.pixels[static_cast<size_t>((y * image.width + x) * 3)];
    return std::array<uint8_t, 3>{pixel[0], pixel[1], pixel[2]};
  };
  std::set<std::array<uint8_t, 3>> colors;
  for (int64_t head = 0; head < 6; ++head) {
    colors.insert(at(8, head * 15 + 8));
    EXPECT_EQ(at(8, head * 15 + 8), at(23, 91 + 12 + head * 15 + 8));
  }
  EXPECT_EQ(colors.size(), 6u);
  EXPECT_EQ(at(8, 95), (std::array<uint8_t, 3>{255, 255, 255}));
  EXPECT_EQ(at(0, 0), at(30, 90));
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
