#include "equitile/base/checked_value.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

template <typename Number>
std::string Wanted(Bounds<Number> bounds) {
  const char* kind = std::is_integral_v<Number> ? "a whole number" : "a number";
  const Bounds<Number> open;
  if (bounds.min == open.min && bounds.max == open.max) return kind;
  if (bounds.max == open.max) return fmt::format("{}, {} or more", kind, bounds.min);
  if (bounds.min == open.min) return fmt::format("{}, {} or less", kind, bounds.max);
  return fmt::format("{} from {} to {}", kind, bounds.min, bounds.max);
}

template <typename Number>
Number Parsed(std::string_view what, std::string_view text, Bounds<Number> bounds) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  bool good = error == std::errc() && stop == end;
  if constexpr (std::is_floating_point_v<Number>) good = good && std::isfinite(value);
  if (!good || value < bounds.min || value > bounds.max) {
    throw InputError("{} {}: must be {}", what, text.empty() ? "''" : text, Wanted(bounds));
  }
  return value;
}

// Levenshtein's.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

int64_t ParseNumber(std::string_view what, std::string_view text, Bounds<int64_t> bounds) {
  return Parsed(what, text, bounds);
}

double ParseNumber(std::string_view what, std::string_view text, Bounds<double> bounds) {
  return Parsed(what, text, bounds);
}

std::string ParseChoice(std::string_view what, std::string_view text,
                        const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    throw InputError("{} {}: must be {}", what, text.empty() ? "''" : text,
                     fmt::join(choices, " or "));
  }
  return std::string(text);
}

std::string NearestWord(std::string_view wanted, const std::vector<std::string>& words,
                        size_t limit) {
  std::string nearest;
  size_t least = limit;
  for (const std::string& word : words) {
    const size_t distance = EditDistance(wanted, word);
    if (distance < least || (distance == least && nearest.empty())) {
      nearest = word;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace equitile
