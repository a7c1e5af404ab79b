#include "equitile/io/records/settings_file.h"

#include <algorithm>

namespace equitile {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string_view WithoutBlanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == text.npos ? "" : text.substr(begin);
}

// One line of TOML, taken apart from left to right.
class TomlLine {
 public:
  TomlLine(std::string_view line, std::string_view name, size_t number)
      : rest_(WithoutBlanks(line)), name_(name), number_(number) {}

  bool IsEmpty() const { return rest_.empty() || rest_.front() == '#'; }

  Setting Parse() {
    Setting setting;
    setting.key = Key();
    rest_ = WithoutBlanks(rest_);
    if (rest_.empty() || rest_.front() != '=') Fail("must be `key = value`");
    rest_ = WithoutBlanks(rest_.substr(1));
    Value(setting);
    rest_ = WithoutBlanks(rest_);
    if (!IsEmpty()) Fail("'{}' after the value", rest_);
    return setting;
  }

 private:
  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError("[io] {}, line {}: {}", name_, number_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  std::string Key() {
    if (rest_.front() == '[') Fail("tables and lists are not read; must be `key = value`");
    if (rest_.front() == '"' || rest_.front() == '\'') return Quoted();
    const size_t end = rest_.find_first_of(" \t=");
    std::string key(rest_.substr(0, end));
    const auto is_of_keys = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
    if (key.empty() || !std::all_of(key.begin(), key.end(), is_of_keys)) {
      Fail("'{}' is no key; must be letters, digits, - and _", key);
    }
    rest_.remove_prefix(key.size());
    return key;
  }

  void Value(Setting& setting) {
    if (!rest_.empty() && (rest_.front() == '"' || rest_.front() == '\'')) {
      setting.text = Quoted();
      return;
    }
    const size_t end = std::min(rest_.find_first_of(" \t#"), rest_.size());
    setting.text = rest_.substr(0, end);
    rest_.remove_prefix(end);
    if (setting.text == "true" || setting.text == "false") {
      setting.kind = SettingKind::kBool;
      return;
    }
    const size_t digit = setting.text.find_first_not_of("+-");
    if (digit == std::string::npos || digit > 1 || setting.text[digit] < '0' ||
        setting.text[digit] > '9') {
      Fail("'{}' must be a \"text\", a number, true or false", setting.text);
    }
    setting.kind = SettingKind::kNumber;
    std::erase(setting.text, '_');
    if (setting.text.front() == '+') setting.text.erase(0, 1);
  }

  // "basic", whose escapes are those of JSON, or 'literal'.
  std::string Quoted() {
    const char quote = rest_.front();
    if (rest_.starts_with(std::string(3, quote))) Fail("texts of several lines are not read");
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) {
      end += rest_[end] == '\\' && quote == '"' ? 2 : 1;
    }
    if (end >= rest_.size()) Fail("a quote is not closed");
    const std::string_view text = rest_.substr(0, end + 1);
    rest_.remove_prefix(end + 1);
    if (quote == '\'') return std::string(text.substr(1, end - 1));
    const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_string()) Fail("{} is no text: an escape is wrong, or it is not UTF-8", text);
    return parsed.get<std::string>();
  }

  std::string_view rest_, name_;
  size_t number_;
};

std::vector<Setting> ParseToml(std::string_view text, std::string_view name) {
  std::vector<Setting> settings;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    TomlLine toml(line, name, number);
    if (toml.IsEmpty()) continue;
    settings.push_back(toml.Parse());
    const auto is_same = [&](const Setting& other) { return other.key == settings.back().key; };
    if (std::any_of(settings.begin(), settings.end() - 1, is_same)) {
      throw InputError("[io] {}, line {}: key '{}' is there twice", name, number,
                       settings.back().key);
    }
  }
  return settings;
}

}  // namespace

std::vector<Setting> SettingsOf(const JsonValue& object) {
  std::vector<Setting> settings;
  for (const auto& [key, value] : object.Items()) {
    Setting setting{.key = key, .kind = SettingKind::kNull, .text = {}};
    if (value.is_string()) {
      setting.kind = SettingKind::kText;
      setting.text = value.get<std::string>();
    } else if (value.is_boolean() || value.is_number()) {
      setting.kind = value.is_boolean() ? SettingKind::kBool : SettingKind::kNumber;
      setting.text = JsonText(value);
    } else if (!value.is_null()) {
      object.Fail("'{}' must be a text, a number, true or false", key);
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

Json SettingsJson(const std::vector<Setting>& settings) {
  Json object = Json::object();
  for (const Setting& setting : settings) {
    object[setting.key] = setting.kind == SettingKind::kText   ? Json(setting.text)
                          : setting.kind == SettingKind::kNull ? Json()
                                                               : Json::parse(setting.text);
  }
  return object;
}

std::vector<Setting> ParseSettings(std::string_view text, std::string_view name) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || text[begin] != '{') return ParseToml(text, name);
  const Json document = ParseJson(text, name);
  return SettingsOf(JsonValue(document, name));
}

std::vector<Setting> ReadSettings(const std::filesystem::path& path) {
  return ParseSettings(ReadTextFile(path), path.string());
}

}  // namespace equitile
