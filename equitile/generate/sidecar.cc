#include "equitile/generate/sidecar.h"

#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/base/version.h"
#include "equitile/generate/task.h"
#include "equitile/io/records/settings_file.h"

namespace equitile {
namespace {

constexpr int64_t kMaxRecordedRanks = 1024;

// 0.1.0 recorded the number of ranks of such a run elsewhere, and no target.
void AddRanks(const JsonValue& root, std::vector<Setting>& parameters) {
  const auto named = [&](std::string_view key) {
    return std::find_if(parameters.begin(), parameters.end(), [&](const Setting& setting) {
      return setting.key == key && setting.kind != SettingKind::kNull;
    });
  };
  if (named("planner") == parameters.end() || named("ranks") != parameters.end()) return;
  const JsonValue run = root["run"];
  parameters.push_back({.key = "ranks",
                        .kind = SettingKind::kNumber,
                        .text = fmt::format("{}", run["ranks"].Integer(1, kMaxRecordedRanks))});
}

}  // namespace

Json SidecarJson(const Recipe& recipe, Json run) {
  return {{"equitile", Version()},
          {"parameters", SettingsJson(recipe.Record())},
          {"run", std::move(run)}};
}

bool IsSidecar(const std::filesystem::path& path) {
  try {
    const Json document = ParseJson(ReadTextFile(path), path.string());
    return document.is_object() && document.contains("parameters") && document.contains("run");
  } catch (const InputError&) {
    return false;
  }
}

std::filesystem::path RecordOf(const std::filesystem::path& made) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (made.extension() == ".json") return made;
  if (fs::is_directory(made, ignored)) {
    const fs::path folder = (made / "").lexically_normal().parent_path();
    return Beside(folder / "%d.png", ".json");
  }
  const fs::path beside = Beside(made, ".json");
  const fs::path of_folder = Beside(fs::path(made).replace_filename("%d.png"), ".json");
  const bool is_picture = made.extension() == ".png" || made.extension() == ".PNG";
  return is_picture && !IsSidecar(beside) && IsSidecar(of_folder) ? of_folder : beside;
}

void ReadSidecar(const std::filesystem::path& path, Recipe& recipe) {
  const std::string name = path.string();
  const Json document = ParseJson(ReadTextFile(path), name);
  const JsonValue root(document, name);
  const JsonValue recorded = root["parameters"];
  std::vector<Setting> parameters = SettingsOf(recorded);
  AddRanks(root, parameters);
  const auto version = root.Find("equitile");
  recipe.SetRecorded(parameters, name, version ? version->Text() : "0.1.0");
}

}  // namespace equitile
