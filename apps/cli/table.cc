#include "apps/cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/wrapped_text.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

std::string Pad(std::string_view text, size_t width, bool right) {
  const std::string blanks(width - std::min(width, TextWidth(text)), ' ');
  return right ? blanks + std::string(text) : std::string(text) + blanks;
}

std::string Spoken(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

}  // namespace

Cell::Cell(int64_t number) : value(number), text(fmt::format("{}", number)) {}

Cell::Cell(std::string word) : value(word), text(std::move(word)) {}

Cell::Cell(double number, int decimals)
    : value(std::isfinite(number) ? Json(number) : Json(nullptr)),
      text(fmt::format("{:.{}f}", number, decimals)) {}

void Table::Add(std::vector<Cell> row) {
  EQ_CHECK(row.size() == columns_.size(), "{} cells in a table of {} columns", row.size(),
           columns_.size());
  rows_.push_back(std::move(row));
}

void Table::SortBy(std::string_view column, Best best) {
  const auto found = std::find_if(columns_.begin(), columns_.end(), [&](const Column& candidate) {
    return candidate.name == column;
  });
  EQ_CHECK(found != columns_.end(), "no column {}", column);
  const auto index = static_cast<size_t>(found - columns_.begin());
  std::stable_sort(rows_.begin(), rows_.end(), [&](const auto& a, const auto& b) {
    const Json& x = a[index].value;
    const Json& y = b[index].value;
    if (!x.is_number() || !y.is_number()) return x.is_number() && !y.is_number();
    return best == Best::kSmallest ? x.get<double>() < y.get<double>()
                                   : x.get<double>() > y.get<double>();
  });
}

std::string Table::ToText(const Terminal& terminal) const {
  std::vector<std::string> lines(rows_.size() + 1);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (!columns_[c].in_text) continue;
    const std::string heading = Spoken(columns_[c].name);
    size_t width = TextWidth(heading);
    bool right = true;
    for (const auto& row : rows_) {
      width = std::max(width, TextWidth(row[c].text));
      right = right && !row[c].value.is_string();
    }
    const char* gap = lines[0].empty() ? "" : "  ";
    lines[0] += gap + Pad(heading, width, right);
    for (size_t r = 0; r < rows_.size(); ++r)
      lines[r + 1] += gap + Pad(rows_[r][c].text, width, right);
  }
  std::string text;
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += (&line == &lines[0] ? terminal.Bold(line) : line) + "\n";
  }
  return text;
}

Json Table::ToJson() const {
  Json array = Json::array();
  for (const auto& row : rows_) {
    Json object = Json::object();
    for (size_t c = 0; c < columns_.size(); ++c) object[columns_[c].name] = row[c].value;
    array.push_back(std::move(object));
  }
  return array.size() == 1 ? Json(array[0]) : array;
}

std::string Counted(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void PrintJson(const Json& json) {
  const auto dump = [](const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (!json.is_array()) {
    fmt::print("{}\n", dump(json));
    return;
  }
  std::vector<std::string> lines;
  for (const Json& element : json) lines.push_back(dump(element));
  fmt::print("[{}]\n", fmt::join(lines, ",\n "));
}

}  // namespace equitile
