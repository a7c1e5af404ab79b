// Everything that decides a video's bits, and the few things that are kept beside it, as one table
// of fields. Flags, --help, --config, sidecars, --from, --resume and what ranks agree on follow
// from the table (recipe_fields.cc): a new field is one entry there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/generate/field_type.h"
#include "equitile/io/records/settings_file.h"
#include "equitile/model/sampling/generation_config.h"

namespace equitile {

class Recipe;

// The member of a GenerationConfig that a field stands for, as text.
struct ConfigMember {
  std::function<std::string(const GenerationConfig& config)> get;  // none: there is no such member
  std::function<void(GenerationConfig& config, const std::string& text)> set;
};

struct RecipeField {
  std::string name = {};   // in messages: "its guidance is '5', not '6'"
  std::string flags = {};  // "-W,--width"; "": cannot be given, the run finds it
  std::string key = {};    // in sidecars, and in the calls below
  FieldType type = {};
  std::optional<std::string> initial = {};  // nothing: none, or the model's
  // Whether a run may only go on with the same value; if `where` is there, only where that holds:
  // elsewhere the field is left open to the next run.
  bool decides_bits = true;
  bool (*where)(const Recipe& recipe) = nullptr;
  std::string since = "0.1.0";  // files of older versions do not have it: they mean `initial`
  std::string help = {};
  std::string describes = {};  // the key of the field that names what this was found in
  ConfigMember member = {};

  // "-W,--width" -> "--width": how messages call the flag. "" without one.
  std::string LongFlag() const;
};

std::span<const RecipeField> RecipeFields();

class Recipe {
 public:
  // Who has said what a value is, from weakest to strongest. kRun is what the run itself has found
  // or settled.
  enum class Source : uint8_t { kDefault, kModel, kRecord, kPreset, kGiven, kRun };
  using Texts = std::map<std::string, std::string>;

  // Fields must outlive it, and all copies of it.
  explicit Recipe(std::span<const RecipeField> fields = RecipeFields());

  std::span<const RecipeField> fields() const { return fields_; }

  // Values by key; fields without one give "" or 0.
  bool Has(std::string_view key) const;
  std::string Text(std::string_view key) const;
  int64_t Integer(std::string_view key) const;
  double Number(std::string_view key) const;
  bool IsOn(std::string_view key) const;
  bool IsSettled(std::string_view key) const;  // see FieldType
  Source SourceOf(std::string_view key) const;

  // Kept unless somebody stronger has spoken; a text that says only a part is laid over what weaker
  // ones have said, now or later (FieldType::over). Throws InputError, beginning with `what`, for a
  // text that is not right.
  void Set(std::string_view key, std::string_view text, Source source, std::string_view what = "");
  // What the run has chosen, whatever was said before.
  void Settle(std::string_view key, std::string_view text);
  // What the run has found in the thing that another field names. Throws InputError where the thing
  // is the one of a record, and was another when that was written.
  void Find(std::string_view key, const std::string& text);

  // Defaults of a checkpoint, and what becomes of them.
  void SetModelDefaults(const GenerationConfig& defaults);
  GenerationConfig Config() const;

  // The parameters of a sidecar: all fields in the order of the table, null where one has no value
  // or is left open.
  std::vector<Setting> Record() const;
  // What `file` (of `version` of this program) recorded becomes kRecord. Throws InputError for
  // unknown keys, values that are not right, and what is missing and no younger than the version.
  void SetRecorded(std::span<const Setting> record, const std::string& file,
                   std::string_view version);

  // Name -> identity. Of the fields that have a value and decide bits here: two runs give the same
  // bits exactly when these are equal. Of all fields: what ranks must have in common.
  Texts BitsIdentity() const;
  Texts Identity() const;
  // Adds to the bits' identity of a run of an older version what that could only have meant.
  void AddOlderDefaults(std::string_view version, Texts& identity) const;

 private:
  struct Value {
    std::optional<std::string> text;
    Source source = Source::kDefault;
    std::map<Source, std::string> said = {};  // of a field whose texts are laid over each other
  };

  size_t IndexOf(std::string_view key) const;
  const Value& ValueOf(std::string_view key) const { return values_[IndexOf(key)]; }
  bool DecidesBits(const RecipeField& field) const;

  std::span<const RecipeField> fields_;
  std::vector<Value> values_;  // [fields]
  std::string recorded_in_;    // the file of what is kRecord
};

}  // namespace equitile
