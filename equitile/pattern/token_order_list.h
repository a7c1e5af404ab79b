// Several token orders as text, for flags and checkpoints.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/pattern/token_order.h"

namespace equitile {

// "fhw+hwf"; "" is the empty list.
std::string TokenOrdersText(std::span<const TokenOrder> orders);
std::vector<TokenOrder> ParseTokenOrders(std::string_view text);  // throws InputError

}  // namespace equitile
