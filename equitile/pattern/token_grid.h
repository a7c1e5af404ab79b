// Where a token lies: on the (frame, height, width) grid of the video, or in the text before or after it; and the six orders in
// which video tokens can be lined up into blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

// The slowest axis first: fhw is the natural order (frame_major), hwf puts all frames of one position together (space_major).
enum class TokenOrder : uint8_t { kFHW, kFWH, kHFW, kHWF, kWFH, kWHF };
inline constexpr std::array<TokenOrder, 6> kTokenOrders = {TokenOrder::kFHW, TokenOrder::kFWH, TokenOrder::kHFW,
                                                           TokenOrder::kHWF, TokenOrder::kWFH, TokenOrder::kWHF};

std::string_view TokenOrderName(TokenOrder order);       // "fhw", ...
TokenOrder ParseTokenOrder(std::string_view name);       // also frame_major, space_major; throws InputError

struct TokenGrid {
  int64_t frames = 0, height = 0, width = 0;
  int64_t text_before = 0, text_after = 0;  // text tokens stay where they are in every order

  int64_t VideoTokens() const { return frames * height * width; }
  int64_t Tokens() const { return text_before + VideoTokens() + text_after; }
  friend bool operator==(const TokenGrid&, const TokenGrid&) = default;
};

// [tokens]: position in `order` -> token in natural order. The identity for fhw.
std::vector<int32_t> TokenAtPosition(const TokenGrid& grid, TokenOrder order);

}  // namespace equitile
