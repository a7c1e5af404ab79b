// Command lines as text: how a shell would read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace equitile {

// What a shell reads back as `word`.
std::string QuotedWord(const std::string& word);

// Words apart by spaces; '…', "…" and \ keep what they hold together. Throws InputError where a
// quote is not closed.
std::vector<std::string> SplitWords(std::string_view text);

}  // namespace equitile
