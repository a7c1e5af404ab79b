#include "equitile/pattern/token_place.h"

namespace equitile {

std::vector<int32_t> PlaceOfToken(const TokenGrid& grid) {
  if (grid.home == TokenOrder::kFHW) return {};
  return TokenAtPosition({.frames = grid.frames, .height = grid.height, .width = grid.width},
                         grid.home);
}

}  // namespace equitile
