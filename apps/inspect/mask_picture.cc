#include "apps/inspect/mask_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/base/range.h"

namespace equitile {
namespace {

// [blocks]: which of `places` each block falls into.
std::vector<int64_t> PlaceOfBlock(int64_t blocks, int64_t places) {
  std::vector<int64_t> place_of_block(static_cast<size_t>(blocks));
  for (int64_t place = 0; place < places; ++place) {
    const Range range = EvenPart(blocks, place, places);
    std::fill(place_of_block.begin() + range.begin, place_of_block.begin() + range.end, place);
  }
  return place_of_block;
}

// Gray ramp of the 256-color palette: 232 (nearly black) to 255 (nearly white).
int Gray(double density) {
  return 232 + static_cast<int>(std::lround(std::clamp(density, 0.0, 1.0) * 23));
}

std::string Shade(double density, bool unicode) {
  constexpr std::array<const char*, 5> kBlocks = {" ", "░", "▒", "▓", "█"};
  constexpr std::array<const char*, 5> kLetters = {" ", ".", ":", "+", "#"};
  // Nothing kept and everything kept have a sign of their own; the rest share the three between.
  const size_t level = density <= 0.0   ? 0
                       : density >= 1.0 ? 4
                                        : 1 + static_cast<size_t>(density * 3);
  return unicode ? kBlocks[level] : kLetters[level];
}

}  // namespace

MaskPicture MeanPicture(const std::vector<MaskLane>& lanes, int64_t max_rows, int64_t max_columns) {
  EQ_CHECK(!lanes.empty() && max_rows > 0 && max_columns > 0);
  const int64_t q_blocks = lanes.front().mask->QBlocks();
  const int64_t kv_blocks = lanes.front().mask->KvBlocks();
  const double scale =
      std::min({1.0, static_cast<double>(max_rows) / static_cast<double>(q_blocks),
                static_cast<double>(max_columns) / static_cast<double>(kv_blocks)});
  const auto places = [&](int64_t blocks) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(blocks) * scale));
  };
  MaskPicture picture{.rows = places(q_blocks), .columns = places(kv_blocks)};
  picture.density.resize(static_cast<size_t>(picture.rows * picture.columns));

  const std::vector<int64_t> column_of_block = PlaceOfBlock(kv_blocks, picture.columns);
  for (int64_t row = 0; row < picture.rows; ++row) {
    const Range q_range = EvenPart(q_blocks, row, picture.rows);
    double* densities = picture.density.data() + row * picture.columns;
    for (const MaskLane& lane : lanes) {
      for (int64_t q = q_range.begin; q < q_range.end; ++q) {
        lane.mask->ForEachKept(lane.lane, q, [&](int64_t kv) {
          densities[column_of_block[static_cast<size_t>(kv)]] += 1;
        });
      }
    }
    for (int64_t column = 0; column < picture.columns; ++column) {
      const int64_t blocks = q_range.size() * EvenPart(kv_blocks, column, picture.columns).size();
      densities[column] /= static_cast<double>(blocks) * static_cast<double>(lanes.size());
    }
  }
  return picture;
}

std::string DrawPicture(const MaskPicture& picture, const Terminal& terminal) {
  std::string text;
  for (int64_t row = 0; row < picture.rows; row += 2) {
    const bool has_lower = row + 1 < picture.rows;
    for (int64_t column = 0; column < picture.columns; ++column) {
      const double upper = picture.At(row, column);
      const double lower = has_lower ? picture.At(row + 1, column) : upper;
      if (terminal.color && terminal.unicode) {
        text += fmt::format("\x1b[38;5;{}m", Gray(upper));
        text += has_lower ? fmt::format("\x1b[48;5;{}m▀", Gray(lower)) : "▀";
      } else {
        text += Shade((upper + lower) / 2, terminal.unicode);
      }
    }
    text += terminal.color && terminal.unicode ? "\x1b[0m\n" : "\n";
  }
  return text;
}

GrayImage PaintPicture(const MaskPicture& picture, int64_t pixels) {
  const int64_t zoom = std::max<int64_t>(1, pixels / std::max(picture.rows, picture.columns));
  GrayImage image(picture.rows * zoom, picture.columns * zoom, 255);
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      image.At(y, x) =
          static_cast<uint8_t>(std::lround(255 * (1 - picture.At(y / zoom, x / zoom))));
    }
  }
  return image;
}

int64_t ContactSheetColumns(int64_t pictures) {
  return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(pictures))));
}

GrayImage ContactSheet(const std::vector<GrayImage>& pictures) {
  EQ_CHECK(!pictures.empty());
  constexpr int64_t kGap = 4;
  constexpr uint8_t kGapGray = 160;
  const auto count = static_cast<int64_t>(pictures.size());
  const int64_t columns = ContactSheetColumns(count);
  const int64_t height = pictures.front().height, width = pictures.front().width;
  GrayImage sheet(CeilDiv(count, columns) * (height + kGap) - kGap, columns * (width + kGap) - kGap,
                  kGapGray);
  for (int64_t i = 0; i < count; ++i) {
    const GrayImage& picture = pictures[static_cast<size_t>(i)];
    EQ_CHECK(picture.height == height && picture.width == width);
    for (int64_t y = 0; y < height; ++y) {
      const auto* row = picture.pixels.data() + y * width;
      std::copy(row, row + width,
                &sheet.At(i / columns * (height + kGap) + y, i % columns * (width + kGap)));
    }
  }
  return sheet;
}

}  // namespace equitile
