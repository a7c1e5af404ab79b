// Between a video and its tokens: where those lie when they are numbered along their home order.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/pattern/token_grid.h"

namespace equitile {

// [video tokens]: the place in the video, numbered with the width fastest, of each video token as
// it is numbered at home. Empty where the two numbers are the same: at home in fhw.
std::vector<int32_t> PlaceOfToken(const TokenGrid& grid);

}  // namespace equitile
