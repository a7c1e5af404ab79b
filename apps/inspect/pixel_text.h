// Words in a picture, without a font file: capitals of three by five dots.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "equitile/io/frames/png.h"

namespace equitile {

using Rgb = std::array<uint8_t, 3>;

struct PixelText {
  int64_t dot = 2;  // pixels on each side
  Rgb color = {0, 0, 0};

  static constexpr int64_t kDotsHigh = 5;
  int64_t Height() const { return kDotsHigh * dot; }
  int64_t Width(std::string_view text) const;
  // Its upper left corner there; what would lie outside of the image is left out. Letters become
  // capitals; what is neither letter nor digit, '.', '-' or '+' is a blank.
  void Draw(std::string_view text, int64_t y, int64_t x, RgbImage& image) const;
};

void FillBox(int64_t y, int64_t x, int64_t height, int64_t width, const Rgb& color,
             RgbImage& image);

}  // namespace equitile
