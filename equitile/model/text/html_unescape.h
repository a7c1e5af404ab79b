// Character references of HTML as text: once the way browsers read them, once as prompt repair
// does.
#pragma once

#include <string>
#include <string_view>

namespace equitile {

// As Python's html.unescape: all names of HTML5, the old ones also without ';' and as the beginning
// of a longer word ("&ampx"), numbers 80 to 9F as cp1252.
std::u32string UnescapeHtml(std::u32string_view text);

// Only references that end in ';'; lower-case names also in capitals ("&EACUTE;").
std::u32string UnescapeHtmlCautiously(std::u32string_view text);

}  // namespace equitile
