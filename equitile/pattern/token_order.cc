#include "equitile/pattern/token_order.h"

#include <charconv>
#include <optional>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr std::string_view kTilesPrefix = "tiles:";

// "4x8x8", nothing else.
std::optional<std::array<int64_t, 3>> ParseExtents(std::string_view text) {
  std::array<int64_t, 3> extents{};
  const char *at = text.data(), *const end = text.data() + text.size();
  for (size_t axis = 0; axis < 3; ++axis) {
    if (axis > 0 && (at == end || *at++ != 'x')) return std::nullopt;
    const auto [rest, error] = std::from_chars(at, end, extents[axis]);
    if (error != std::errc()) return std::nullopt;
    at = rest;
  }
  return at == end ? std::optional(extents) : std::nullopt;
}

}  // namespace

TokenOrder TokenOrder::Tiles(int64_t frames, int64_t height, int64_t width) {
  for (int64_t extent : {frames, height, width}) {
    if (extent < 1 || extent > kMaxTileExtent) {
      throw InputError("[pattern] tiles of {}x{}x{} tokens: extents must be from 1 to {}", frames,
                       height, width, kMaxTileExtent);
    }
  }
  TokenOrder order(Kind::kTiles);
  order.frames_ = static_cast<uint16_t>(frames);
  order.height_ = static_cast<uint16_t>(height);
  order.width_ = static_cast<uint16_t>(width);
  return order;
}

std::string_view TokenOrder::Axes() const {
  constexpr std::array<std::string_view, 6> kAxes = {"fhw", "fwh", "hfw", "hwf", "wfh", "whf"};
  const auto kind = static_cast<size_t>(kind_);
  return kind < kAxes.size() ? kAxes[kind] : std::string_view();
}

void TokenOrder::AddTo(Hasher& hasher) const {
  hasher.Add(kind_);
  if (IsTiles()) hasher.Add(frames_).Add(height_).Add(width_);
}

std::string TokenOrderName(TokenOrder order) {
  if (order == TokenOrder::kHilbert) return "hilbert";
  if (!order.IsTiles()) return std::string(order.Axes());
  const auto [frames, height, width] = order.TileExtents();
  return fmt::format("{}{}x{}x{}", kTilesPrefix, frames, height, width);
}

TokenOrder ParseTokenOrder(std::string_view name) {
  if (name == "frame_major") return TokenOrder::kFHW;
  if (name == "space_major") return TokenOrder::kHWF;
  if (name == "hilbert") return TokenOrder::kHilbert;
  for (TokenOrder order : kAxisOrders) {
    if (order.Axes() == name) return order;
  }
  if (name.starts_with(kTilesPrefix)) {
    if (const auto extents = ParseExtents(name.substr(kTilesPrefix.size())))
      return TokenOrder::Tiles((*extents)[0], (*extents)[1], (*extents)[2]);
  }
  throw InputError("[pattern] unknown token order '{}'; use {}", name, kTokenOrderNames);
}

}  // namespace equitile
