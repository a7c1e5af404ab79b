#include "equitile/generate/quality_preset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "equitile/base/error.h"

namespace equitile {
namespace {

bool HasPattern(const Recipe& recipe) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(recipe.Text("model")) / "pattern.json",
                                 ignored);
}

const QualityPreset& PresetOf(std::string_view name) {
  const auto presets = QualityPresets();
  const auto found = std::find_if(presets.begin(), presets.end(),
                                  [&](const QualityPreset& preset) { return preset.name == name; });
  EQ_CHECK(found != presets.end(), "no quality '{}'", name);
  return *found;
}

}  // namespace

std::span<const QualityPreset> QualityPresets() {
  // Meant to stay above 40, 30 and 25 dB PSNR to exact on wan-mini; not measured yet.
  static const std::vector<QualityPreset> presets = {
      {"exact", {{"attention", "dense"}, {"dense_steps", "auto"}, {"cache", "none"}}},
      {"high", {{"attention", "observe:mass=0.999"}, {"dense_steps", "40%"}, {"cache", "none"}}},
      {"balanced",
       {{"attention", "observe:mass=0.99"}, {"dense_steps", "20%"}, {"cache", "easy:0.02"}}},
      {"draft",
       {{"attention", "observe:mass=0.95"}, {"dense_steps", "20%"}, {"cache", "easy:0.05"}}},
  };
  return presets;
}

std::vector<std::string> QualityNames() {
  std::vector<std::string> names;
  for (const QualityPreset& preset : QualityPresets()) names.push_back(preset.name);
  return names;
}

std::string QualityHelp() {
  std::string text;
  for (const QualityPreset& preset : QualityPresets()) {
    text += (text.empty() ? "" : "; ") + preset.name;
    for (const auto& [key, value] : preset.settings) {
      if (value == "auto" || value == "none") continue;
      text += " " + (key == "dense_steps" ? "dense-steps " + value : value);
    }
  }
  return text + "; a model's own pattern.json instead of observe, where there is one";
}

void ApplyQuality(std::string_view name, const std::set<std::string>& beside, Recipe::Source source,
                  Recipe& recipe) {
  for (const auto& [key, value] : PresetOf(name).settings) {
    if (beside.contains(key)) continue;
    const bool takes_pattern = value.starts_with("observe") && HasPattern(recipe);
    recipe.Set(key, takes_pattern ? "pattern" : value, source);
  }
}

}  // namespace equitile
