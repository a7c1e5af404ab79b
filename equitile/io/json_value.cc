#include "equitile/io/json_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "equitile/io/atomic_write.h"
#include "equitile/io/mapped_file.h"

namespace equitile {

void JsonValue::CheckKeys(std::initializer_list<std::string_view> known) const {
  if (!json_.is_object()) Fail("must be an object");
  for (const auto& item : json_.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      Fail("unknown key '{}'; known are {}", item.key(), fmt::join(known, ", "));
    }
  }
}

JsonValue JsonValue::operator[](const char* key) const {
  if (!json_.is_object()) Fail("must be an object");
  const auto found = json_.find(key);
  if (found == json_.end()) Fail("'{}' is missing", key);
  return JsonValue(*found, this, name_, key, -1);
}

std::optional<JsonValue> JsonValue::Find(const char* key) const {
  if (!json_.is_object()) Fail("must be an object");
  const auto found = json_.find(key);
  if (found == json_.end() || found->is_null()) return std::nullopt;
  return JsonValue(*found, this, name_, key, -1);
}

int64_t JsonValue::Size() const {
  if (!json_.is_array()) Fail("must be a list");
  return static_cast<int64_t>(json_.size());
}

int64_t JsonValue::Size(int64_t expected) const {
  if (Size() != expected) Fail("must have {} entries, has {}", expected, Size());
  return expected;
}

JsonValue JsonValue::At(int64_t index) const {
  return JsonValue(json_[static_cast<size_t>(index)], this, name_, nullptr, index);
}

int64_t JsonValue::Integer(int64_t min, int64_t max) const {
  const bool is_integer = json_.is_number_unsigned()
                              ? json_.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                              : json_.is_number_integer();
  if (!is_integer || json_.get<int64_t>() < min || json_.get<int64_t>() > max) {
    Fail("must be a whole number from {} to {}", min, max);
  }
  return json_.get<int64_t>();
}

double JsonValue::Number(double min, double max) const {
  if (!json_.is_number()) Fail("must be a number");
  const double value = json_.get<double>();
  if (!std::isfinite(value) || value < min || value > max)
    Fail("must be a number from {} to {}", min, max);
  return value;
}

bool JsonValue::Bool() const {
  if (!json_.is_boolean()) Fail("must be true or false");
  return json_.get<bool>();
}

std::string JsonValue::Text() const {
  if (!json_.is_string()) Fail("must be a text");
  return json_.get<std::string>();
}

uint64_t JsonValue::Hash() const {
  const std::string text = Text();
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc{} || end != text.data() + text.size() || text.size() != 16) {
    Fail("must be 16 hexadecimal digits");
  }
  return hash;
}

std::vector<int32_t> JsonValue::Integers(int64_t min, int64_t max) const {
  std::vector<int32_t> values(static_cast<size_t>(Size()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(At(static_cast<int64_t>(i)).Integer(min, max));
  }
  return values;
}

std::string JsonValue::Path() const {
  if (parent_ == nullptr) return "";
  const std::string before = parent_->Path();
  if (key_ == nullptr) return fmt::format("{}[{}]", before, index_);
  return before.empty() ? key_ : fmt::format("{}.{}", before, key_);
}

std::string JsonValue::Place() const {
  if (parent_ == nullptr) return "";
  if (json_.is_structured()) return fmt::format("'{}': ", Path());
  std::string value = json_.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (value.size() > 40) value = value.substr(0, 37) + "...";
  return fmt::format("'{}' holds {}: ", Path(), value);
}

std::string HashText(uint64_t hash) { return fmt::format("{:016x}", hash); }

namespace {

// Refuses what the parser itself would swallow: a key given twice (one of them would silently mean
// nothing) and nesting without end.
class KeyCheck {
 public:
  explicit KeyCheck(std::string_view name) : name_(name) {}

  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      if (depth > kMaxDepth) throw InputError("[io] {}: nested too deep", name_);
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::array_start) {
      if (depth > kMaxDepth) throw InputError("[io] {}: nested too deep", name_);
    } else if (event == Json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw InputError("[io] {}: key '{}' is there twice", name_, key);
      }
    }
    return true;
  }

 private:
  static constexpr int kMaxDepth = 100;
  std::string_view name_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

Json ParseJson(std::string_view text, std::string_view name) {
  try {
    return Json::parse(
        text, [check = KeyCheck(name)](int depth, Json::parse_event_t event, Json& value) mutable {
          return check(depth, event, value);
        });
  } catch (const Json::exception& error) {
    // Behind the library's own name of the error; it may quote the text, and one line is enough.
    std::string reason = error.what();
    for (const std::string_view before : {"] ", "parse error at "}) {
      if (const size_t at = reason.find(before); at != reason.npos) {
        reason.erase(0, at + before.size());
      }
    }
    std::replace_if(
        reason.begin(), reason.end(), [](unsigned char c) { return c < ' '; }, ' ');
    throw InputError("[io] {}: not JSON: {}", name, reason);
  }
}

std::string JsonText(const Json& json, int indent) { return json.dump(indent); }

std::string ReadTextFile(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void WriteTextFile(const std::filesystem::path& path, std::string_view text) {
  WriteFileAtomically(path, {std::as_bytes(std::span(text.data(), text.size()))});
}

}  // namespace equitile
