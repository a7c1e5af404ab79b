// How the video tokens of a lane line up into blocks, as a small value: one of the six orders of
// the axes, a Hilbert curve, or tiles. What it does to a grid is TokenAtPosition (token_grid.h).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "equitile/base/hash.h"

namespace equitile {

class TokenOrder {
 public:
  // The slowest axis first: fhw is the natural order (frame_major), hwf puts all frames of one
  // position together (space_major).
  static const TokenOrder kFHW, kFWH, kHFW, kHWF, kWFH, kWHF;
  static const TokenOrder kHilbert;
  // Tiles in fhw order, the tokens of a tile in fhw order; those at the far ends may be smaller.
  // Extents are from 1 to kMaxTileExtent, else InputError.
  static TokenOrder Tiles(int64_t frames, int64_t height, int64_t width);
  static constexpr int64_t kMaxTileExtent = UINT16_MAX;

  constexpr TokenOrder() = default;  // fhw

  bool IsTiles() const { return kind_ == Kind::kTiles; }
  std::array<int64_t, 3> TileExtents() const { return {frames_, height_, width_}; }
  // Of the six only, the slowest axis first: "fhw"; empty for the others.
  std::string_view Axes() const;

  void AddTo(Hasher& hasher) const;
  friend constexpr bool operator==(TokenOrder, TokenOrder) = default;
  friend constexpr auto operator<=>(TokenOrder, TokenOrder) = default;

 private:
  enum class Kind : uint16_t { kFHW, kFWH, kHFW, kHWF, kWFH, kWHF, kHilbert, kTiles };
  constexpr explicit TokenOrder(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kFHW;
  uint16_t frames_ = 0, height_ = 0, width_ = 0;  // of a tile; else 0
};

inline constexpr TokenOrder TokenOrder::kFHW{Kind::kFHW}, TokenOrder::kFWH{Kind::kFWH},
    TokenOrder::kHFW{Kind::kHFW}, TokenOrder::kHWF{Kind::kHWF}, TokenOrder::kWFH{Kind::kWFH},
    TokenOrder::kWHF{Kind::kWHF}, TokenOrder::kHilbert{Kind::kHilbert};

inline constexpr std::array<TokenOrder, 6> kAxisOrders = {TokenOrder::kFHW, TokenOrder::kFWH,
                                                          TokenOrder::kHFW, TokenOrder::kHWF,
                                                          TokenOrder::kWFH, TokenOrder::kWHF};

// "fhw", ..., "hilbert", "tiles:4x8x8"
std::string TokenOrderName(TokenOrder order);
// Takes every name, and frame_major and space_major; throws InputError.
TokenOrder ParseTokenOrder(std::string_view name);
// What ParseTokenOrder takes, for messages.
inline constexpr std::string_view kTokenOrderNames =
    "fhw, fwh, hfw, hwf, wfh, whf, hilbert or tiles:FxHxW";

}  // namespace equitile
