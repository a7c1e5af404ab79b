// The colours of a GIF: one palette for all frames of a clip, so that nothing flickers between
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace equitile {

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Rgb&) const = default;
};

// How often colours are there, rounded to 5, 6 and 5 bits.
class ColourCounts {
 public:
  ColourCounts() : counts_(kBins), sums_(kBins) {}
  void Add(std::span<const uint8_t> rgb);  // [pixels][3]

  // At most `most` colours, by cuts of the box with the largest squared error at its mean.
  std::vector<Rgb> Palette(size_t most) const;

 private:
  static constexpr size_t kBins = 1 << 16;
  std::vector<uint64_t> counts_;
  std::vector<std::array<uint64_t, 3>> sums_;  // of the exact colours
};

// Pixels to the nearest colour of a palette, with an ordered dither: the same pattern in every
// frame, so that what stands still does not swarm.
class PaletteMap {
 public:
  explicit PaletteMap(std::vector<Rgb> palette);  // 1 to 256 colours
  // rgb: [height][width][3]; indices: [height][stride]
  void Apply(std::span<const uint8_t> rgb, int64_t width, uint8_t* indices, int64_t stride);
  const std::vector<Rgb>& palette() const { return palette_; }

 private:
  uint8_t Nearest(int r, int g, int b);

  std::vector<Rgb> palette_;
  std::vector<int16_t> known_;  // by 6, 6 and 6 bits; -1: not looked for yet
  int amplitude_ = 0;           // of the dither
};

}  // namespace equitile
