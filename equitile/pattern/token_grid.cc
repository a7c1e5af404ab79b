#include "equitile/pattern/token_grid.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "equitile/pattern/hilbert.h"

namespace equitile {
namespace {

struct Axis {
  int64_t extent, stride;
};

Axis AxisOf(const TokenGrid& grid, char name) {
  if (name == 'f') return {grid.frames, grid.height * grid.width};
  if (name == 'h') return {grid.height, grid.width};
  return {grid.width, 1};
}

// Appends the cells of a box of the video, whose first is `first`, the last axis fastest.
void AppendBox(int64_t first, Axis a, Axis b, Axis c, std::vector<int32_t>& tokens) {
  for (int64_t i = 0; i < a.extent; ++i) {
    for (int64_t j = 0; j < b.extent; ++j) {
      const int64_t line = first + i * a.stride + j * b.stride;
      for (int64_t k = 0; k < c.extent; ++k)
        tokens.push_back(static_cast<int32_t>(line + k * c.stride));
    }
  }
}

void AppendTiles(const TokenGrid& grid, TokenOrder order, std::vector<int32_t>& tokens) {
  const Axis f = AxisOf(grid, 'f'), h = AxisOf(grid, 'h'), w = AxisOf(grid, 'w');
  const auto [frames, height, width] = order.TileExtents();
  const auto part = [](Axis axis, int64_t begin, int64_t extent) -> Axis {
    return {std::min(extent, axis.extent - begin), axis.stride};
  };
  for (int64_t i = 0; i < f.extent; i += frames) {
    for (int64_t j = 0; j < h.extent; j += height) {
      for (int64_t k = 0; k < w.extent; k += width) {
        const int64_t first = grid.text_before + i * f.stride + j * h.stride + k * w.stride;
        AppendBox(first, part(f, i, frames), part(h, j, height), part(w, k, width), tokens);
      }
    }
  }
}

// Position in `order` -> token, numbered along fhw.
std::vector<int32_t> NaturalTokens(const TokenGrid& grid, TokenOrder order) {
  std::vector<int32_t> tokens(static_cast<size_t>(grid.text_before));
  tokens.reserve(static_cast<size_t>(grid.Tokens()));
  std::iota(tokens.begin(), tokens.end(), 0);
  if (order.IsTiles()) {
    AppendTiles(grid, order, tokens);
  } else if (order == TokenOrder::kHilbert) {
    for (int32_t cell : HilbertCells(grid.frames, grid.height, grid.width))
      tokens.push_back(static_cast<int32_t>(grid.text_before + cell));
  } else {
    const std::string_view axes = order.Axes();
    AppendBox(grid.text_before, AxisOf(grid, axes[0]), AxisOf(grid, axes[1]), AxisOf(grid, axes[2]),
              tokens);
  }
  for (int64_t t = grid.Tokens() - grid.text_after; t < grid.Tokens(); ++t)
    tokens.push_back(static_cast<int32_t>(t));
  return tokens;
}

}  // namespace

std::vector<int32_t> TokenAtPosition(const TokenGrid& grid, TokenOrder order) {
  std::vector<int32_t> tokens = NaturalTokens(grid, order);
  if (grid.home == TokenOrder::kFHW) return tokens;
  const std::vector<int32_t> at_home = NaturalTokens(grid, grid.home);
  std::vector<int32_t> number(at_home.size());
  for (size_t p = 0; p < at_home.size(); ++p)
    number[static_cast<size_t>(at_home[p])] = static_cast<int32_t>(p);
  for (int32_t& token : tokens) token = number[static_cast<size_t>(token)];
  return tokens;
}

}  // namespace equitile
