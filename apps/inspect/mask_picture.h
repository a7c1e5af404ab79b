// What a mask looks like: how many of some masks keep each place, as letters in a terminal or as a
// PNG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/terminal.h"
#include "equitile/io/frames/png.h"
#include "equitile/pattern/block_mask.h"

namespace equitile {

struct MaskPicture {
  int64_t rows = 0, columns = 0;  // of queries and keys, at most one per block
  std::vector<double> density;    // [rows, columns]; 1 where every block of every lane is kept

  double At(int64_t row, int64_t column) const {
    return density[static_cast<size_t>(row * columns + column)];
  }
};

// One lane of one mask.
struct MaskLane {
  const BlockMask* mask;
  int64_t lane;
};

// The mean over `lanes`, which share a block grid, in at most max_rows x max_columns places with
// the mask's proportions.
MaskPicture MeanPicture(const std::vector<MaskLane>& lanes, int64_t max_rows, int64_t max_columns);

// Bright is kept. Two rows per line: half blocks where there is color, else the mean of both as a
// shade.
std::string DrawPicture(const MaskPicture& picture, const Terminal& terminal);

// Dark is kept. Small pictures are enlarged by a whole factor, up to about `pixels` on the longer
// side.
GrayImage PaintPicture(const MaskPicture& picture, int64_t pixels);

// Pictures of one size side by side, as square as their number allows, with gray lines between.
int64_t ContactSheetColumns(int64_t pictures);
GrayImage ContactSheet(const std::vector<GrayImage>& pictures);

}  // namespace equitile
