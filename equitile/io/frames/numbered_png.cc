#include "equitile/io/frames/numbered_png.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

namespace equitile {
namespace {

struct Pattern {
  std::string before, after;
  int digits = 0;
};

// In letters of any case.
bool EndsWithPng(std::string_view name) {
  constexpr std::string_view kEnding = ".png";
  if (name.size() < kEnding.size()) return false;
  name.remove_prefix(name.size() - kEnding.size());
  return std::equal(name.begin(), name.end(), kEnding.begin(),
                    [](unsigned char a, char b) { return std::tolower(a) == b; });
}

std::optional<Pattern> Parse(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const size_t percent = name.find('%');
  if (percent == std::string::npos || !EndsWithPng(name)) return std::nullopt;
  Pattern pattern;
  pattern.before = name.substr(0, percent);
  std::string_view rest = std::string_view(name).substr(percent + 1);
  if (rest.size() > 2 && rest[0] == '0' && rest[1] >= '1' && rest[1] <= '9') {
    pattern.digits = rest[1] - '0';
    rest.remove_prefix(2);
  }
  if (!rest.starts_with('d') || rest.find('%') != std::string_view::npos) return std::nullopt;
  pattern.after = rest.substr(1);
  return pattern;
}

}  // namespace

bool IsNumberedPng(const std::filesystem::path& path) { return Parse(path).has_value(); }

std::filesystem::path NumberedPng(const std::filesystem::path& path, int64_t number) {
  const Pattern pattern = Parse(path).value();
  return path.parent_path() /
         fmt::format("{}{:0{}}{}", pattern.before, number, pattern.digits, pattern.after);
}

void RemoveNumberedFrom(const std::filesystem::path& path, int64_t number) {
  std::error_code ignored;
  while (std::filesystem::remove(NumberedPng(path, number), ignored)) ++number;
}

}  // namespace equitile
