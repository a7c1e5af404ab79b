#include "equitile/generate/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// "0.10.2" -> {0, 10, 2}; what is not a number counts as 0.
std::array<int, 3> VersionNumbers(std::string_view version) {
  std::array<int, 3> numbers = {};
  for (int& number : numbers) {
    const size_t end = std::min(version.find('.'), version.size());
    std::from_chars(version.data(), version.data() + end, number);
    version.remove_prefix(std::min(end + 1, version.size()));
  }
  return numbers;
}

bool IsOlder(std::string_view version, std::string_view than) {
  return VersionNumbers(version) < VersionNumbers(than);
}

SettingKind KindInFiles(FieldKind kind) {
  return kind == FieldKind::kText     ? SettingKind::kText
         : kind == FieldKind::kSwitch ? SettingKind::kBool
                                      : SettingKind::kNumber;
}

const char* KindName(SettingKind kind) {
  return kind == SettingKind::kText   ? "a text"
         : kind == SettingKind::kBool ? "true or false"
                                      : "a number";
}

}  // namespace

std::string RecipeField::LongFlag() const {
  const size_t begin = flags.find("--");
  return begin == flags.npos ? flags : flags.substr(begin, flags.find(',', begin) - begin);
}

Recipe::Recipe(std::span<const RecipeField> fields) : fields_(fields), values_(fields.size()) {
  for (size_t i = 0; i < fields.size(); ++i) {
    values_[i].text = fields[i].initial;
    if (fields[i].type.over) values_[i].said[Source::kDefault] = fields[i].initial.value_or("");
  }
}

size_t Recipe::IndexOf(std::string_view key) const {
  const auto found = std::find_if(fields_.begin(), fields_.end(),
                                  [&](const RecipeField& field) { return field.key == key; });
  EQ_CHECK(found != fields_.end(), "no field '{}'", key);
  return static_cast<size_t>(found - fields_.begin());
}

bool Recipe::Has(std::string_view key) const { return ValueOf(key).text.has_value(); }

std::string Recipe::Text(std::string_view key) const { return ValueOf(key).text.value_or(""); }

int64_t Recipe::Integer(std::string_view key) const {
  return Has(key) ? ParseNumber(key, Text(key), Bounds<int64_t>{}) : 0;
}

double Recipe::Number(std::string_view key) const {
  return Has(key) ? ParseNumber(key, Text(key), Bounds<double>{}) : 0;
}

bool Recipe::IsOn(std::string_view key) const { return Text(key) == "true"; }

bool Recipe::IsSettled(std::string_view key) const {
  return fields_[IndexOf(key)].type.IsSettled(Text(key));
}

Recipe::Source Recipe::SourceOf(std::string_view key) const { return ValueOf(key).source; }

void Recipe::Set(std::string_view key, std::string_view text, Source source,
                 std::string_view what) {
  const size_t index = IndexOf(key);
  const FieldType& type = fields_[index].type;
  Value& value = values_[index];
  std::string checked = type.Checked(what, text);
  if (!type.over) {
    if (source >= value.source) value = {std::move(checked), source};
    return;
  }
  value.said[source] = std::move(checked);
  if (value.source == Source::kRun) return;
  value.source = value.said.rbegin()->first;
  value.text = value.said.begin()->second;
  for (auto it = std::next(value.said.begin()); it != value.said.end(); ++it)
    value.text = type.over(it->second, *value.text);
}

void Recipe::Settle(std::string_view key, std::string_view text) {
  values_[IndexOf(key)] = {std::string(text), Source::kRun};
}

void Recipe::Find(std::string_view key, const std::string& text) {
  const size_t index = IndexOf(key);
  const RecipeField& field = fields_[index];
  const Value& recorded = values_[index];
  if (recorded.source == Source::kRecord && recorded.text != text &&
      SourceOf(field.describes) == Source::kRecord) {
    throw InputError("--from {}: was made with another {} than {} has now: '{}', not '{}'",
                     recorded_in_, field.name, Text(field.describes), recorded.text.value_or(""),
                     text);
  }
  Settle(key, text);
}

void Recipe::SetModelDefaults(const GenerationConfig& defaults) {
  for (const RecipeField& field : fields_) {
    if (!field.member.get) continue;
    if (field.describes.empty()) {
      Set(field.key, field.member.get(defaults), Source::kModel, field.name);
    } else {
      Find(field.key, field.member.get(defaults));
    }
  }
}

GenerationConfig Recipe::Config() const {
  GenerationConfig config;
  for (const RecipeField& field : fields_) {
    if (field.member.set && Has(field.key)) field.member.set(config, Text(field.key));
  }
  return config;
}

std::vector<Setting> Recipe::Record() const {
  std::vector<Setting> record;
  for (size_t i = 0; i < fields_.size(); ++i) {
    const RecipeField& field = fields_[i];
    Setting& setting = record.emplace_back(Setting{field.key, SettingKind::kNull, ""});
    if (!values_[i].text || (field.where != nullptr && !field.where(*this))) continue;
    setting.kind = KindInFiles(field.type.kind);
    setting.text = field.type.Stored(*values_[i].text);
  }
  return record;
}

void Recipe::SetRecorded(std::span<const Setting> record, const std::string& file,
                         std::string_view version) {
  recorded_in_ = file;
  for (const Setting& setting : record) {
    const auto found = std::find_if(fields_.begin(), fields_.end(), [&](const RecipeField& field) {
      return field.key == setting.key;
    });
    if (found == fields_.end()) {
      throw InputError("{}: unknown parameter '{}', of equitile {}; this one does not have it",
                       file, setting.key, version);
    }
    if (setting.kind == SettingKind::kNull) continue;
    const std::string what = fmt::format("{}: {}", file, setting.key);
    const SettingKind kind = KindInFiles(found->type.kind);
    if (setting.kind != kind) {
      throw InputError("{} {}: must be {}", what, setting.text, KindName(kind));
    }
    if (!found->type.IsSettled(setting.text)) {
      throw InputError("{} {}: must be what the run had, not how it was chosen", what,
                       setting.text);
    }
    Set(setting.key, setting.text, Source::kRecord, what);
  }
  for (const RecipeField& field : fields_) {
    const bool must_be_there = field.decides_bits && field.where == nullptr &&
                               field.describes.empty() && !IsOlder(version, field.since);
    const auto is_there = [&](const Setting& setting) {
      return setting.key == field.key && setting.kind != SettingKind::kNull;
    };
    if (must_be_there && std::none_of(record.begin(), record.end(), is_there)) {
      throw InputError("{}: '{}' is missing", file, field.key);
    }
  }
}

bool Recipe::DecidesBits(const RecipeField& field) const {
  return field.decides_bits && (field.where == nullptr || field.where(*this));
}

Recipe::Texts Recipe::BitsIdentity() const {
  Texts identity;
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (!values_[i].text || !DecidesBits(fields_[i])) continue;
    identity[fields_[i].name] = fields_[i].type.Identity(*values_[i].text);
  }
  return identity;
}

Recipe::Texts Recipe::Identity() const {
  Texts identity;
  for (size_t i = 0; i < fields_.size(); ++i) {
    identity[fields_[i].name] =
        values_[i].text ? fields_[i].type.Identity(*values_[i].text) : "not given";
  }
  return identity;
}

void Recipe::AddOlderDefaults(std::string_view version, Texts& identity) const {
  for (const RecipeField& field : fields_) {
    if (field.initial && IsOlder(version, field.since) && DecidesBits(field)) {
      identity.emplace(field.name, field.type.Identity(*field.initial));
    }
  }
}

}  // namespace equitile
