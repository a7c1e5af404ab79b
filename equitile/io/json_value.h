// Reading JSON that people edit: every question checks kind and range of the answer, and what is
// wrong is named by its place
// ("row_owner[3][17]") in one line. For io, and for records and checkpoints of
// the rooms above; model, exec, plan and kernel see no JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {

using Json = nlohmann::ordered_json;

// A view of one value inside a document; the document and the value's parent must outlive it.
class JsonValue {
 public:
  // `name` stands for the document in messages.
  JsonValue(const Json& document, std::string_view name) : json_(document), name_(name) {}

  // Members. Refuses keys that are not in `known`: a misspelt one would silently mean nothing.
  void CheckKeys(std::initializer_list<std::string_view> known) const;
  JsonValue operator[](const char* key) const;           // must be there
  std::optional<JsonValue> Find(const char* key) const;  // nothing if absent or null

  // Elements.
  int64_t Size() const;                  // of an array
  int64_t Size(int64_t expected) const;  // fails unless the array has as many
  JsonValue At(int64_t index) const;

  int64_t Integer(int64_t min, int64_t max) const;
  double Number(double min, double max) const;  // finite
  bool Bool() const;
  std::string Text() const;
  uint64_t Hash() const;  // 16 hexadecimal digits
  std::vector<int32_t> Integers(int64_t min, int64_t max) const;
  bool IsInteger() const { return json_.is_number_integer(); }
  bool IsText() const { return json_.is_string(); }
  const Json& json() const { return json_; }
  auto Items() const {
    if (!json_.is_object()) Fail("must be an object");
    return json_.items();
  }

  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError("[io] {}: {}{}", name_, Place(),
                     fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  JsonValue(const Json& json, const JsonValue* parent, std::string_view name, const char* key,
            int64_t index)
      : json_(json), parent_(parent), name_(name), key_(key), index_(index) {}
  std::string Path() const;
  std::string Place() const;  // "'row_owner[3][17]' holds 99: ", nothing for the document

  const Json& json_;
  const JsonValue* parent_ = nullptr;
  std::string_view name_;
  const char* key_ = nullptr;
  int64_t index_ = -1;
};

std::string HashText(uint64_t hash);  // 16 hexadecimal digits

Json ParseJson(std::string_view text, std::string_view name);  // throws InputError
std::string JsonText(const Json& json, int indent = -1);       // negative: in one line
std::string ReadTextFile(const std::filesystem::path& path);   // throws InputError
void WriteTextFile(const std::filesystem::path& path, std::string_view text);

}  // namespace equitile
