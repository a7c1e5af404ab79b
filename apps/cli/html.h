// What pages have in common.
#pragma once

#include <string>
#include <string_view>

#include "equitile/base/base64.h"
#include "equitile/io/frames/png.h"
#include "equitile/io/json_value.h"

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

// JSON for a page's <script>. No '<', so that no name can end the script it stands in; bytes that
// are no UTF-8 are replaced.
inline std::string ScriptText(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (char c : text) {
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  }
  return safe;
}

// A picture that needs no file: "data:image/png;base64,...".
inline std::string PictureText(const RgbImage& image) {
  const std::vector<std::byte> png = EncodePng(image);
  return "data:image/png;base64," +
         Base64({reinterpret_cast<const uint8_t*>(png.data()), png.size()});
}

}  // namespace equitile
