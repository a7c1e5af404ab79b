// Prose in lines of so many columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

// Columns that a UTF-8 text takes on screen, for the letters and signs we print (one column each).
size_t TextWidth(std::string_view text);

// The words of `text` in lines of at most `columns`; a longer word has a line of its own. Its own
// line breaks stay.
std::vector<std::string> WrappedLines(std::string_view text, size_t columns);

// The same for 80 columns, as one text.
std::string Wrapped(std::string_view text);

}  // namespace equitile
