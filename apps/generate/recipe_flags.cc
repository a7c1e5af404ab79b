#include "apps/generate/recipe_flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "equitile/base/checked_value.h"
#include "equitile/base/error.h"
#include "equitile/io/records/settings_file.h"

namespace equitile {
namespace {

void AddFlag(CLI::App& app, const RecipeField& field, Recipe& recipe) {
  const std::string flag = field.LongFlag();
  const auto set = [&recipe, &field, flag](const std::string& text) {
    recipe.Set(field.key, text, Recipe::Source::kGiven, flag);
  };
  if (field.type.kind == FieldKind::kSwitch) {
    app.add_flag_function(
        fmt::format("{},!--no-{}", field.flags, flag.substr(2)),
        [set, &app, flag](int64_t) {
          set(app.get_option(flag)->results().back() == "false" ? "false" : "true");
        },
        field.help);
    return;
  }
  const std::vector<std::string>& choices = field.type.choices;
  const std::string help =
      choices.empty() ? field.help : fmt::format("{}: {}", field.help, fmt::join(choices, ", "));
  CLI::Option* option = app.add_option_function<std::string>(field.flags, set, help);
  option->type_name(field.type.placeholder);
  if (field.initial) option->default_str(*field.initial);
}

bool IsSwitch(const CLI::Option& option) { return option.get_expected_max() == 0; }

std::vector<std::string> KnownKeys(const CLI::App& app) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "help" && name != "config") keys.push_back(name);
    }
  }
  return keys;
}

// What stands on a command line for the setting; nothing: the flag is left out.
std::optional<std::string> ArgumentOf(const Setting& setting, const CLI::Option& option) {
  const bool is_bool = setting.kind == SettingKind::kBool;
  if (setting.kind == SettingKind::kNull) return std::nullopt;
  if (IsSwitch(option)) {
    if (!is_bool) throw InputError("{} {}: must be true or false", setting.key, setting.text);
    const bool can_be_off = option.get_fnames().size() > 0;
    return setting.text == "true" || can_be_off ? std::optional(setting.text) : std::nullopt;
  }
  if (!is_bool) return setting.text;
  if (option.get_expected_min() > 0) {
    throw InputError("{} {}: must be a value", setting.key, setting.text);
  }
  return setting.text == "true" ? std::optional<std::string>("") : std::nullopt;
}

void Apply(const Setting& setting, CLI::App& app, std::set<const CLI::Option*>& given) {
  const std::vector<std::string> known = KnownKeys(app);
  std::string key = setting.key;
  std::replace(key.begin(), key.end(), '_', '-');
  if (std::find(known.begin(), known.end(), key) == known.end()) {
    throw InputError("unknown key '{}'; the nearest is {}", setting.key, NearestWord(key, known));
  }
  CLI::Option* option = app.get_option("--" + key);
  if (!given.insert(option).second) throw InputError("'{}' is there twice", setting.key);
  const std::optional<std::string> argument = ArgumentOf(setting, *option);
  if (!argument || option->count() > 0) return;
  option->add_result(*argument);
  option->run_callback();
}

}  // namespace

void AddRecipeFlags(CLI::App& app, Recipe& recipe, const std::vector<std::string_view>& without) {
  for (const RecipeField& field : recipe.fields()) {
    const bool is_left_out = std::find(without.begin(), without.end(), field.key) != without.end();
    if (!field.flags.empty() && !is_left_out) AddFlag(app, field, recipe);
  }
}

CLI::Option* AddConfig(CLI::App& app, std::string& path) {
  return app
      .add_option("--config", path,
                  "flags from a file, JSON or TOML: steps = 20; those given here count more")
      ->type_name("FILE");
}

void ApplyConfig(const std::string& path, CLI::App& app) {
  std::set<const CLI::Option*> given;
  for (const Setting& setting : ReadSettings(path)) {
    try {
      Apply(setting, app, given);
    } catch (const InputError& error) {
      throw InputError("{}: {}", path, error.what());
    }
  }
}

}  // namespace equitile
