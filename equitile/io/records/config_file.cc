#include "equitile/io/records/config_file.h"

#include "equitile/io/json_value.h"

namespace equitile {

struct ConfigFile::Document {
  Json json;
  std::string name;
  JsonValue root() const { return JsonValue(json, name); }
  bool Missing(const char* key) const { return !json.contains(key); }
};

ConfigFile::ConfigFile(const std::filesystem::path& path)
    : ConfigFile(ReadTextFile(path), path.string()) {}

ConfigFile::ConfigFile(std::string_view text, std::string name)
    : name_(std::move(name)),
      document_(std::make_unique<Document>(Document{ParseJson(text, name_), name_})) {
  if (!document_->json.is_object()) document_->root().Fail("must be a JSON object");
}

ConfigFile::~ConfigFile() = default;
ConfigFile::ConfigFile(ConfigFile&&) noexcept = default;
ConfigFile& ConfigFile::operator=(ConfigFile&&) noexcept = default;

bool ConfigFile::Has(const char* key) const { return document_->root().Find(key).has_value(); }

bool ConfigFile::IsNull(const char* key) const { return !document_->Missing(key) && !Has(key); }

int64_t ConfigFile::Integer(const char* key, int64_t fallback, int64_t min, int64_t max) const {
  return document_->Missing(key) ? fallback : document_->root()[key].Integer(min, max);
}

double ConfigFile::Number(const char* key, double fallback, double min, double max) const {
  return document_->Missing(key) ? fallback : document_->root()[key].Number(min, max);
}

bool ConfigFile::Bool(const char* key, bool fallback) const {
  if (document_->Missing(key)) return fallback;
  return !IsNull(key) && document_->root()[key].Bool();
}

std::string ConfigFile::Text(const char* key, const std::string& fallback) const {
  return document_->Missing(key) ? fallback : document_->root()[key].Text();
}

std::vector<int64_t> ConfigFile::Integers(const char* key, const std::vector<int64_t>& fallback,
                                          int64_t min, int64_t max) const {
  if (document_->Missing(key)) return fallback;
  const JsonValue root = document_->root();
  const JsonValue list = root[key];
  std::vector<int64_t> values;
  for (int64_t i = 0; i < list.Size(); ++i) values.push_back(list.At(i).Integer(min, max));
  return values;
}

std::vector<double> ConfigFile::Numbers(const char* key,
                                        const std::vector<double>& fallback) const {
  if (document_->Missing(key)) return fallback;
  const JsonValue root = document_->root();
  const JsonValue list = root[key];
  std::vector<double> values;
  for (int64_t i = 0; i < list.Size(); ++i) values.push_back(list.At(i).Number(-1e300, 1e300));
  return values;
}

std::vector<bool> ConfigFile::Bools(const char* key, const std::vector<bool>& fallback) const {
  if (document_->Missing(key)) return fallback;
  const JsonValue root = document_->root();
  const JsonValue list = root[key];
  std::vector<bool> values;
  for (int64_t i = 0; i < list.Size(); ++i) values.push_back(list.At(i).Bool());
  return values;
}

std::optional<int64_t> ConfigFile::FindInteger(const char* key, int64_t min, int64_t max) const {
  if (!Has(key)) return std::nullopt;
  return Integer(key, 0, min, max);
}

std::optional<std::string> ConfigFile::FindText(const char* key) const {
  if (!Has(key)) return std::nullopt;
  return Text(key, "");
}

std::optional<std::vector<std::string>> ConfigFile::FindTexts(const char* key) const {
  if (!Has(key)) return std::nullopt;
  const JsonValue root = document_->root();
  const JsonValue list = root[key];
  std::vector<std::string> values;
  for (int64_t i = 0; i < list.Size(); ++i) {
    const JsonValue value = list.At(i);
    values.push_back(value.json().is_null() ? "" : value.Text());
  }
  return values;
}

void ConfigFile::CheckClass(std::string_view expected) const {
  const std::optional<std::string> found = FindText("_class_name");
  if (found && *found != expected) {
    Fail("_class_name", fmt::format("this class is not supported; {} is", expected));
  }
}

bool ConfigFile::IsOn(const char* key) const {
  if (!Has(key)) return false;
  const Json& value = document_->json[key];
  return value != false && value != "" && !(value.is_array() && value.empty());
}

void ConfigFile::CheckUnused(const char* key) const {
  if (IsOn(key)) Fail(key, "is not supported; leave it out");
}

void ConfigFile::Fail(const char* key, const std::string& why) const {
  document_->root()[key].Fail("{}", why);
}

}  // namespace equitile
