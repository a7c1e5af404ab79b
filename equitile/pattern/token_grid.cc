#include "equitile/pattern/token_grid.h"

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"fhw", "fwh", "hfw", "hwf", "wfh", "whf"};

}  // namespace

std::string_view TokenOrderName(TokenOrder order) { return kNames[static_cast<size_t>(order)]; }

TokenOrder ParseTokenOrder(std::string_view name) {
  if (name == "frame_major") return TokenOrder::kFHW;
  if (name == "space_major") return TokenOrder::kHWF;
  for (TokenOrder order : kTokenOrders) {
    if (TokenOrderName(order) == name) return order;
  }
  throw InputError("[pattern] unknown token order '{}'; use fhw, fwh, hfw, hwf, wfh or whf", name);
}

std::vector<int32_t> TokenAtPosition(const TokenGrid& grid, TokenOrder order) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(grid.Tokens()));
  for (int64_t t = 0; t < grid.text_before; ++t) tokens.push_back(static_cast<int32_t>(t));

  const std::string_view axes = TokenOrderName(order);
  auto extent = [&](char axis) { return axis == 'f' ? grid.frames : axis == 'h' ? grid.height : grid.width; };
  auto stride = [&](char axis) { return axis == 'f' ? grid.height * grid.width : axis == 'h' ? grid.width : int64_t{1}; };
  for (int64_t a = 0; a < extent(axes[0]); ++a) {
    for (int64_t b = 0; b < extent(axes[1]); ++b) {
      for (int64_t c = 0; c < extent(axes[2]); ++c) {
        tokens.push_back(
            static_cast<int32_t>(grid.text_before + a * stride(axes[0]) + b * stride(axes[1]) + c * stride(axes[2])));
      }
    }
  }
  for (int64_t t = grid.Tokens() - grid.text_after; t < grid.Tokens(); ++t) tokens.push_back(static_cast<int32_t>(t));
  return tokens;
}

}  // namespace equitile
