#include "apps/cli/wrapped_text.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace equitile {

size_t TextWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::vector<std::string> WrappedLines(std::string_view text, size_t columns) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    std::string& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (TextWidth(line) + 1 + TextWidth(word) <= columns) {
      (line += ' ') += word;
    } else {
      lines.emplace_back(word);
    }
    if (end < text.size() && text[end] == '\n') lines.emplace_back();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string Wrapped(std::string_view text) {
  return fmt::format("{}", fmt::join(WrappedLines(text, 80), "\n"));
}

}  // namespace equitile
