#include "equitile/io/records/token_json.h"

namespace equitile {

TokenOrder TokenOrderFrom(const JsonValue& name) {
  try {
    return ParseTokenOrder(name.Text());
  } catch (const InputError&) {
    name.Fail("must be {}", kTokenOrderNames);
  }
}

TokenGrid TokenGridFrom(const JsonValue& extents, const std::optional<JsonValue>& text) {
  extents.Size(3);
  TokenGrid grid{.frames = extents.At(0).Integer(1, kMaxFileTokens),
                 .height = extents.At(1).Integer(1, kMaxFileTokens),
                 .width = extents.At(2).Integer(1, kMaxFileTokens)};
  if (text) {
    text->CheckKeys({"before", "after"});
    if (const auto before = text->Find("before"))
      grid.text_before = before->Integer(0, kMaxFileTokens);
    if (const auto after = text->Find("after")) grid.text_after = after->Integer(0, kMaxFileTokens);
  }
  // height * width fits in 62 bits, then the rest is compared without multiplying.
  if (grid.height * grid.width > kMaxFileTokens / grid.frames || grid.Tokens() > kMaxFileTokens)
    extents.Fail("more than {} tokens", kMaxFileTokens);
  return grid;
}

Json ExtentsJson(const TokenGrid& grid) { return {grid.frames, grid.height, grid.width}; }

Json TextJson(const TokenGrid& grid) {
  return {{"before", grid.text_before}, {"after", grid.text_after}};
}

}  // namespace equitile
