// Where a token lies: on the (frame, height, width) grid of the video, or in the text before or
// after it; and what stands where when the video is lined up in an order.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/pattern/token_order.h"

namespace equitile {

struct TokenGrid {
  int64_t frames = 0, height = 0, width = 0;
  int64_t text_before = 0, text_after = 0;  // text tokens stay where they are in every order
  TokenOrder home =
      TokenOrder::kFHW;  // in which tokens are kept and numbered, between layers and in memory

  int64_t VideoTokens() const { return frames * height * width; }
  int64_t Tokens() const { return text_before + VideoTokens() + text_after; }
  friend bool operator==(const TokenGrid&, const TokenGrid&) = default;
};

// [tokens]: position in `order` -> token, numbered along grid.home. The identity for that order.
std::vector<int32_t> TokenAtPosition(const TokenGrid& grid, TokenOrder order);

}  // namespace equitile
