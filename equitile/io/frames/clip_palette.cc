#include "equitile/io/frames/clip_palette.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "equitile/base/error.h"

namespace equitile {
namespace {

size_t BinOf(const uint8_t* rgb) {
  return static_cast<size_t>(rgb[0] >> 3 << 11 | rgb[1] >> 2 << 5 | rgb[2] >> 3);
}

struct Colour {
  std::array<double, 3> mean;
  double count;
};

// Colours that one entry of the palette stands for.
struct Box {
  std::vector<Colour> colours;
  std::array<double, 3> mean = {};
  double error = 0;  // squared, along the axis where it is largest
  size_t axis = 0;

  explicit Box(std::vector<Colour> all) : colours(std::move(all)) {
    double count = 0;
    for (const Colour& c : colours) count += c.count;
    for (size_t a = 0; a < 3; ++a) {
      for (const Colour& c : colours) mean[a] += c.count * c.mean[a] / count;
      double squares = 0;
      for (const Colour& c : colours) squares += c.count * std::pow(c.mean[a] - mean[a], 2);
      if (squares > error) error = squares, axis = a;
    }
  }
};

}  // namespace

void ColourCounts::Add(std::span<const uint8_t> rgb) {
  for (size_t i = 0; i + 2 < rgb.size(); i += 3) {
    const size_t bin = BinOf(&rgb[i]);
    ++counts_[bin];
    for (size_t a = 0; a < 3; ++a) sums_[bin][a] += rgb[i + a];
  }
}

std::vector<Rgb> ColourCounts::Palette(size_t most) const {
  std::vector<Colour> colours;
  for (size_t bin = 0; bin < kBins; ++bin) {
    if (counts_[bin] == 0) continue;
    Colour& colour = colours.emplace_back(Colour{{}, static_cast<double>(counts_[bin])});
    for (size_t a = 0; a < 3; ++a) {
      colour.mean[a] = static_cast<double>(sums_[bin][a]) / colour.count;
    }
  }
  if (colours.empty()) return {Rgb{}};
  std::vector<Box> boxes;
  boxes.emplace_back(std::move(colours));
  while (boxes.size() < most) {
    const auto worst = std::max_element(
        boxes.begin(), boxes.end(), [](const Box& x, const Box& y) { return x.error < y.error; });
    if (worst->error <= 0) break;
    const size_t axis = worst->axis;
    const double at = worst->mean[axis];
    std::vector<Colour> all = std::move(worst->colours);
    const auto cut = std::stable_partition(all.begin(), all.end(),
                                           [&](const Colour& c) { return c.mean[axis] <= at; });
    if (cut == all.begin() || cut == all.end()) {  // one colour, but for rounding
      worst->error = 0;
      continue;
    }
    Box upper(std::vector<Colour>(cut, all.end()));
    all.erase(cut, all.end());
    *worst = Box(std::move(all));
    boxes.push_back(std::move(upper));
  }
  std::vector<Rgb> palette;
  for (const Box& box : boxes) {
    const auto level = [&](size_t a) { return static_cast<uint8_t>(std::lround(box.mean[a])); };
    palette.push_back({level(0), level(1), level(2)});
  }
  return palette;
}

PaletteMap::PaletteMap(std::vector<Rgb> palette)
    : palette_(std::move(palette)), known_(1 << 18, -1) {
  EQ_CHECK(!palette_.empty() && palette_.size() <= 256);
  // Half of the mean distance from a colour to its neighbour: enough to hide the edges between
  // them. Few colours are those of a drawing, in which every one is exact.
  double distances = 0;
  for (const Rgb& c : palette_) {
    int nearest = 3 * 255 * 255;
    for (const Rgb& d : palette_) {
      const int r = c.r - d.r, g = c.g - d.g, b = c.b - d.b;
      if (c != d) nearest = std::min(nearest, r * r + g * g + b * b);
    }
    distances += std::sqrt(nearest);
  }
  constexpr size_t kDrawing = 64;
  if (palette_.size() > kDrawing) {
    const double spacing = distances / static_cast<double>(palette_.size());
    amplitude_ = std::min(16, static_cast<int>(spacing / 2));
  }
}

uint8_t PaletteMap::Nearest(int r, int g, int b) {
  int16_t& known = known_[static_cast<size_t>(r >> 2 << 12 | g >> 2 << 6 | b >> 2)];
  if (known >= 0) return static_cast<uint8_t>(known);
  int least = INT32_MAX;
  for (size_t i = 0; i < palette_.size(); ++i) {
    const int dr = (r | 3) - palette_[i].r, dg = (g | 3) - palette_[i].g,
              db = (b | 3) - palette_[i].b;
    // Eyes see green best and blue least.
    const int distance = 3 * dr * dr + 6 * dg * dg + db * db;
    if (distance < least) least = distance, known = static_cast<int16_t>(i);
  }
  return static_cast<uint8_t>(known);
}

void PaletteMap::Apply(std::span<const uint8_t> rgb, int64_t width, uint8_t* indices,
                       int64_t stride) {
  // Bayer's 4 x 4 matrix.
  constexpr int kBayer[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
  const int64_t height = static_cast<int64_t>(rgb.size()) / 3 / width;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* pixel = &rgb[static_cast<size_t>(3 * (y * width + x))];
      const int shift = (2 * kBayer[y % 4][x % 4] - 15) * amplitude_ / 16;
      const auto level = [&](int channel) { return std::clamp(pixel[channel] + shift, 0, 255); };
      indices[y * stride + x] = Nearest(level(0), level(1), level(2));
    }
  }
}

}  // namespace equitile
