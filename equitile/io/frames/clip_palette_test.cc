#include "equitile/io/frames/clip_palette.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace equitile {
namespace {

std::vector<uint8_t> Pixels(const std::vector<Rgb>& colours) {
  std::vector<uint8_t> rgb;
  for (const Rgb& c : colours) rgb.insert(rgb.end(), {c.r, c.g, c.b});
  return rgb;
}

TEST(ClipPalette, FewColoursAreKeptExactly) {
  const std::vector<Rgb> drawn = {{229, 30, 36}, {8, 8, 10}, {250, 217, 25}};
  ColourCounts counts;
  for (int frame = 0; frame < 3; ++frame) counts.Add(Pixels({drawn[static_cast<size_t>(frame)]}));
  std::vector<Rgb> palette = counts.Palette(255);
  ASSERT_EQ(palette.size(), 3u);
  for (const Rgb& c : drawn) EXPECT_NE(std::find(palette.begin(), palette.end(), c), palette.end());
  PaletteMap map(palette);
  std::vector<uint8_t> indices(3);
  map.Apply(Pixels(drawn), 3, indices.data(), 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(palette[indices[i]], drawn[i]);
}

TEST(ClipPalette, NothingAndOneColour) {
  EXPECT_EQ(ColourCounts().Palette(255).size(), 1u);
  ColourCounts counts;
  counts.Add(Pixels({{1, 2, 3}, {1, 2, 3}}));
  EXPECT_EQ(counts.Palette(255), (std::vector<Rgb>{{1, 2, 3}}));
}

// A ramp of one hue, where a fixed cube of colours has eight steps.
TEST(ClipPalette, RampsAreFollowedClosely) {
  std::vector<Rgb> ramp;
  for (int i = 0; i < 256; ++i) {
    ramp.push_back({static_cast<uint8_t>(i), static_cast<uint8_t>(i / 4), 20});
  }
  ColourCounts counts;
  counts.Add(Pixels(ramp));
  PaletteMap map(counts.Palette(255));
  EXPECT_LE(map.palette().size(), 255u);
  std::vector<uint8_t> indices(256);
  map.Apply(Pixels(ramp), 256, indices.data(), 256);
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_LE(std::abs(map.palette()[indices[i]].r - ramp[i].r), 12) << i;
  }
}

TEST(ClipPalette, ColoursAreAtMostAsManyAsAskedFor) {
  std::vector<Rgb> cube;
  for (int i = 0; i < 4096; ++i) {
    cube.push_back({static_cast<uint8_t>(i % 16 * 16), static_cast<uint8_t>(i / 16 % 16 * 16),
                    static_cast<uint8_t>(i / 256 * 16)});
  }
  ColourCounts counts;
  counts.Add(Pixels(cube));
  for (size_t most : {1u, 2u, 17u, 255u}) EXPECT_EQ(counts.Palette(most).size(), most);
}

}  // namespace
}  // namespace equitile
