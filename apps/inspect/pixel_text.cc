#include "apps/inspect/pixel_text.h"

#include <algorithm>
#include <cctype>

namespace equitile {
namespace {

constexpr int64_t kDotsWide = 3;

// Fifteen dots, row by row.
constexpr std::string_view kLetters[26] = {
    "010101111101101", "110101110101110", "011100100100011", "110101101101110",  // A to D
    "111100110100111", "111100110100100", "011100101101011", "101101111101101",  // E to H
    "111010010010111", "001001001101010", "101101110101101", "100100100100111",  // I to L
    "101111101101101", "110101101101101", "010101101101010", "110101110100100",  // M to P
    "010101101111011", "110101110101101", "011100010001110", "111010010010010",  // Q to T
    "101101101101111", "101101101101010", "101101111111101", "101101010101101",  // U to X
    "101101010010010", "111001010100111"};                                       // Y, Z
constexpr std::string_view kDigits[10] = {
    "111101101101111", "010110010010111", "110001010100111", "110001010001110", "101101111001001",
    "111100110001110", "011100111101111", "111001010010010", "111101111101111", "111101111001110"};

std::string_view DotsOf(char sign) {
  const auto upper = static_cast<char>(std::toupper(static_cast<unsigned char>(sign)));
  if (upper >= 'A' && upper <= 'Z') return kLetters[upper - 'A'];
  if (sign >= '0' && sign <= '9') return kDigits[sign - '0'];
  if (sign == '-') return "000000111000000";
  if (sign == '+') return "000010111010000";
  if (sign == '.') return "000000000000010";
  return "000000000000000";
}

}  // namespace

int64_t PixelText::Width(std::string_view text) const {
  return text.empty() ? 0 : (std::ssize(text) * (kDotsWide + 1) - 1) * dot;
}

void PixelText::Draw(std::string_view text, int64_t y, int64_t x, RgbImage& image) const {
  for (const char sign : text) {
    const std::string_view dots = DotsOf(sign);
    for (size_t i = 0; i < dots.size(); ++i) {
      if (dots[i] != '1') continue;
      const auto at = static_cast<int64_t>(i);
      FillBox(y + at / kDotsWide * dot, x + at % kDotsWide * dot, dot, dot, color, image);
    }
    x += (kDotsWide + 1) * dot;
  }
}

void FillBox(int64_t y, int64_t x, int64_t height, int64_t width, const Rgb& color,
             RgbImage& image) {
  const int64_t top = std::max<int64_t>(y, 0), bottom = std::min(y + height, image.height);
  const int64_t left = std::max<int64_t>(x, 0), right = std::min(x + width, image.width);
  for (int64_t row = top; row < bottom; ++row) {
    for (int64_t column = left; column < right; ++column) {
      std::ranges::copy(
          color, image.pixels.begin() + static_cast<ptrdiff_t>((row * image.width + column) * 3));
    }
  }
}

}  // namespace equitile
