// The JSON settings of a checkpoint's parts, read as diffusers reads them: what is missing has its
// default, what is unknown is ignored. What is there must be of the right kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

class ConfigFile {
 public:
  explicit ConfigFile(const std::filesystem::path& path);  // throws InputError
  ConfigFile(std::string_view text, std::string name);     // `name` is for messages
  ~ConfigFile();
  ConfigFile(ConfigFile&&) noexcept;
  ConfigFile& operator=(ConfigFile&&) noexcept;

  const std::string& name() const { return name_; }
  bool Has(const char* key) const;     // there, and not null
  bool IsNull(const char* key) const;  // there, and null

  // The value, or `fallback` where the key is missing. All throw InputError for another kind (null
  // too, but for Bool, where it is false) or what is not within min and max.
  int64_t Integer(const char* key, int64_t fallback, int64_t min = 0,
                  int64_t max = int64_t{1} << 31) const;
  double Number(const char* key, double fallback, double min = -1e300, double max = 1e300) const;
  bool Bool(const char* key, bool fallback) const;
  std::string Text(const char* key, const std::string& fallback) const;
  std::vector<int64_t> Integers(const char* key, const std::vector<int64_t>& fallback,
                                int64_t min = 0, int64_t max = int64_t{1} << 31) const;
  std::vector<double> Numbers(const char* key, const std::vector<double>& fallback) const;
  std::vector<bool> Bools(const char* key, const std::vector<bool>& fallback) const;

  // Nothing where the key is missing or null.
  std::optional<int64_t> FindInteger(const char* key, int64_t min = 0,
                                     int64_t max = int64_t{1} << 31) const;
  std::optional<std::string> FindText(const char* key) const;
  // The elements of a list of texts and nulls (null: ""), as model_index.json has them.
  std::optional<std::vector<std::string>> FindTexts(const char* key) const;

  // The class that the file is for; a file that names none passes.
  void CheckClass(std::string_view expected) const;
  // Anything but null, false, "" or an empty list.
  bool IsOn(const char* key) const;
  // For switches that we do not have: anything but null, false, "" or an empty list is refused.
  void CheckUnused(const char* key) const;
  // "[io] FILE: 'key' holds VALUE: why"
  [[noreturn]] void Fail(const char* key, const std::string& why) const;

 private:
  struct Document;
  std::string name_;
  std::unique_ptr<Document> document_;
};

}  // namespace equitile
