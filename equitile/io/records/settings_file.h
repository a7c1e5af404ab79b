// Named values that people write down, one level deep: a JSON object, or the simple kind of TOML.
// What the values mean is the reader's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/io/json_value.h"

namespace equitile {

enum class SettingKind : uint8_t { kText, kNumber, kBool, kNull };

struct Setting {
  std::string key;
  SettingKind kind = SettingKind::kText;
  std::string text;  // numbers as written, "true" and "false", "" for null

  friend bool operator==(const Setting&, const Setting&) = default;
};

// In the order of the file; a key that is there twice is refused. A text that begins with '{' is
// JSON: texts, numbers, booleans and null. Any other is TOML: lines of `key = value`, empty or
// with a comment; values are texts in one line ("basic" or 'literal'), numbers and booleans; there
// are no tables, lists and dates. Throws InputError with the place.
std::vector<Setting> ParseSettings(std::string_view text, std::string_view name);
std::vector<Setting> ReadSettings(const std::filesystem::path& path);

// The members of an object inside a larger document, and back.
std::vector<Setting> SettingsOf(const JsonValue& object);
Json SettingsJson(const std::vector<Setting>& settings);

}  // namespace equitile
