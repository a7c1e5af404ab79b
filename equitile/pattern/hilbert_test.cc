#include "equitile/pattern/hilbert.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "equitile/pattern/token_grid.h"

namespace equitile {
namespace {

struct Size {
  int64_t frames, height, width;
};

// Empty if every cell comes once and every step is of length one.
std::string WhatIsWrong(const Size& size) {
  const auto [frames, height, width] = size;
  const std::vector<int32_t> cells = HilbertCells(frames, height, width);
  if (std::ssize(cells) != frames * height * width) return "another number of cells";
  std::vector<bool> seen(cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto cell = static_cast<size_t>(cells[i]);
    if (cell >= seen.size() || seen[cell]) return "a cell outside, or twice";
    seen[cell] = true;
    if (i == 0) continue;
    const int64_t a = cells[i - 1], b = cells[i];
    const int64_t step = std::abs(a / (height * width) - b / (height * width)) +
                         std::abs(a / width % height - b / width % height) +
                         std::abs(a % width - b % width);
    if (step != 1) return fmt::format("a step of length {} after {} cells", step, i);
  }
  return "";
}

TEST(Hilbert, VisitsEveryCellOnceWithUnitSteps) {
  for (int64_t f = 1; f <= 16; ++f) {
    for (int64_t h = 1; h <= 16; ++h) {
      for (int64_t w = 1; w <= 16; ++w)
        ASSERT_EQ(WhatIsWrong({f, h, w}), "") << f << "x" << h << "x" << w;
    }
  }
}

TEST(Hilbert, LargeAndThinBoxes) {
  for (const Size& size : std::vector<Size>{{21, 30, 52},
                                            {21, 45, 80},
                                            {31, 37, 41},
                                            {1, 1, 997},
                                            {997, 1, 1},
                                            {2, 499, 1},
                                            {1, 211, 97},
                                            {3, 2, 307},
                                            {33, 60, 104},
                                            {64, 64, 64},
                                            {5, 3, 211},
                                            {101, 2, 2}}) {
    EXPECT_EQ(WhatIsWrong(size), "") << size.frames << "x" << size.height << "x" << size.width;
  }
  EXPECT_TRUE(HilbertCells(0, 4, 4).empty());
}

// Mean over blocks of `block` tokens of the variance of their places, summed over the axes.
double Spread(const TokenGrid& grid, TokenOrder order, int64_t block) {
  const std::vector<int32_t> tokens = TokenAtPosition(grid, order);
  double sum = 0;
  int64_t blocks = 0;
  for (int64_t begin = 0; begin + block <= std::ssize(tokens); begin += block, ++blocks) {
    double mean[3] = {}, square = 0;
    for (int64_t i = begin; i < begin + block; ++i) {
      const int64_t t = tokens[static_cast<size_t>(i)];
      const double place[3] = {static_cast<double>(t / (grid.height * grid.width)),
                               static_cast<double>(t / grid.width % grid.height),
                               static_cast<double>(t % grid.width)};
      for (int axis = 0; axis < 3; ++axis) {
        mean[axis] += place[axis] / static_cast<double>(block);
        square += place[axis] * place[axis] / static_cast<double>(block);
      }
    }
    sum += square - mean[0] * mean[0] - mean[1] * mean[1] - mean[2] * mean[2];
  }
  return sum / static_cast<double>(blocks);
}

// 64 tokens of a cube of 4x4x4 have a spread of 3.75. The curve stays near that on every grid,
// those that no tile divides too.
TEST(Hilbert, BlocksAreNearlyCubes) {
  for (const TokenGrid& grid : std::vector<TokenGrid>{
           {13, 16, 16}, {21, 30, 52}, {21, 45, 80}, {13, 17, 19}, {9, 9, 9}, {27, 27, 27}}) {
    EXPECT_LT(Spread(grid, TokenOrder::kHilbert, 64), 1.5 * 3.75);
    EXPECT_GT(Spread(grid, TokenOrder::kFHW, 64), 3 * 3.75);
  }
  EXPECT_DOUBLE_EQ(Spread({16, 16, 16}, TokenOrder::kHilbert, 64), 3.75);
}

}  // namespace
}  // namespace equitile
