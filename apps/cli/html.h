// What pages have in common.
#pragma once

#include <string>
#include <string_view>

namespace equitile {

// Fit for text and for attributes in double quotes.
inline std::string HtmlEscaped(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace equitile
