// Token grids and orders as JSON, written alike in masks, plans and patterns. Inside io only.
#pragma once

#include <optional>

#include "equitile/io/json_value.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

inline constexpr int64_t kMaxFileTokens = INT32_MAX;  // token numbers are 32 bits wide

// "hwf", "tiles:4x8x8", ...
TokenOrder TokenOrderFrom(const JsonValue& name);

// [F, H, W] and {"before", "after"}, either of which may be left out of the latter.
TokenGrid TokenGridFrom(const JsonValue& extents, const std::optional<JsonValue>& text);
Json ExtentsJson(const TokenGrid& grid);
Json TextJson(const TokenGrid& grid);

}  // namespace equitile
