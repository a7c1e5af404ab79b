// How the values of a recipe's fields are written and checked: the same for flags, files and
// checkpoints. Values are texts everywhere; what is read from them has been checked before.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/base/checked_value.h"

namespace equitile {

enum class FieldKind : uint8_t { kText, kInteger, kNumber, kSwitch };

struct FieldType {
  using Map = std::function<std::string(std::string_view text)>;

  FieldKind kind = FieldKind::kText;
  std::string placeholder = {};           // in --help: "N"
  std::vector<std::string> choices = {};  // empty: not a list of words
  // The one way to write what `text` says, so that equal values are equal texts; throws InputError
  // that begins with `what`. None: any text.
  std::function<std::string(std::string_view what, std::string_view text)> check = {};
  // A text may say only a part: what it becomes over the one that somebody weaker has said. None:
  // what is said stands alone.
  std::function<std::string(std::string_view text, std::string_view under)> over = {};
  Map identity = {};  // what of it runs and ranks must have in common; none: all
  Map stored = {};    // as files have it; none: as it is
  // False for a text that leaves the choice to the run, which records what it chose; none: true.
  std::function<bool(std::string_view text)> is_settled = {};

  std::string Checked(std::string_view what, std::string_view text) const;
  std::string Identity(std::string_view text) const;
  std::string Stored(std::string_view text) const;
  bool IsSettled(std::string_view text) const { return !is_settled || is_settled(text); }
};

FieldType WholeNumber(Bounds<int64_t> bounds = {});
FieldType RealNumber(Bounds<double> bounds = {});
FieldType Switch();  // --name and --no-name
FieldType Text(std::string placeholder = "TEXT");
FieldType Word(std::vector<std::string> choices);
FieldType Hash();  // 16 hexadecimal digits
// Ranks and runs may have the same thing in other places: they must agree on whether there is one.
// What is read is stored so that it is found from any folder.
FieldType InputPath(std::string placeholder);
FieldType OutputPath(std::string placeholder);

}  // namespace equitile
