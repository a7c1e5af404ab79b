// Results as rows: aligned text for people, JSON with full precision for programs, from the same
// cells.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/terminal.h"

namespace equitile {

using Json = nlohmann::ordered_json;  // keeps the order in which keys were added

struct Cell {
  Json value;        // for JSON
  std::string text;  // for people

  Cell(int64_t number);  // NOLINT(google-explicit-constructor): a row reads as a list of values
  Cell(int number) : Cell(int64_t{number}) {}          // NOLINT(google-explicit-constructor)
  Cell(std::string word);                              // NOLINT(google-explicit-constructor)
  Cell(const char* word) : Cell(std::string(word)) {}  // NOLINT(google-explicit-constructor)
  Cell(double number, int decimals);                   // not finite: null in JSON
  Cell(Json value, std::string text) : value(std::move(value)), text(std::move(text)) {}
};

struct Column {
  std::string
      name;  // the JSON key; spoken with spaces in text: fraction_of_peak -> "fraction of peak"
  bool in_text = true;  // false: only in JSON
};

enum class Best { kSmallest, kLargest };

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(std::vector<Cell> row);  // one cell per column

  // Best first; equal rows keep their order, rows whose cell is not a number come last.
  void SortBy(std::string_view column, Best best);

  size_t RowCount() const { return rows_.size(); }

  // Numbers to the right, words to the left; ends with a newline.
  std::string ToText(const Terminal& terminal) const;

  // One row: an object. Otherwise an array of objects.
  Json ToJson() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// "1 frame", "3 frames"
std::string Counted(int64_t count, std::string_view what);

// One JSON value on standard output; an array with one line per element. File names that are not
// UTF-8 do not stop it.
void PrintJson(const Json& json);

}  // namespace equitile
