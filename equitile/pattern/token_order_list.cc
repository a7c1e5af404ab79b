#include "equitile/pattern/token_order_list.h"

namespace equitile {

std::string TokenOrdersText(std::span<const TokenOrder> orders) {
  std::string text;
  for (const TokenOrder order : orders) text += (text.empty() ? "" : "+") + TokenOrderName(order);
  return text;
}

std::vector<TokenOrder> ParseTokenOrders(std::string_view text) {
  std::vector<TokenOrder> orders;
  for (bool more = !text.empty(); more;) {
    const size_t end = text.find('+');
    orders.push_back(ParseTokenOrder(text.substr(0, end)));
    more = end != text.npos;
    if (more) text.remove_prefix(end + 1);
  }
  return orders;
}

}  // namespace equitile
