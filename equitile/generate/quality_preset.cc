#include "equitile/generate/quality_preset.h"

#include <fmt/format.h>

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

const QualityPreset& PresetOf(std::string_view name) {
  const auto presets = QualityPresets();
  const auto found = std::find_if(presets.begin(), presets.end(),
                                  [&](const QualityPreset& preset) { return preset.name == name; });
  EQ_CHECK(found != presets.end(), "no quality '{}'", name);
  return *found;
}

}  // namespace

std::span<const QualityPreset> QualityPresets() {
  // Dials are chosen on validation prompts of wan-mini, for 40, 30 and 25 dB PSNR to exact; what
  // they give on prompts that nobody chose by is in docs/results/sparsity.md.
  static const std::vector<QualityPreset> presets = {
      {"exact",
       {{"compute", "f32"}, {"attention", "dense"}, {"dense_steps", "auto"}, {"cache", "none"}}},
      {"high",
       {{"compute", "int16"},
        {"attention", "predict:error=0.003"},
        {"dense_steps", "20%"},
        {"cache", "none"}}},
      {"balanced",
       {{"compute", "int16"},
        {"attention", "predict:error=0.01"},
        {"dense_steps", "20%"},
        {"cache", "easy:0.03"}}},
      {"draft",
       {{"compute", "int8"},
        {"attention", "predict:error=0.02"},
        {"dense_steps", "20%"},
        {"cache", "easy:0.05"}}},
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
      if (value == "auto" || value == "none" || value == "f32") continue;
      text += " " + (key == "dense_steps" ? "dense-steps " + value : value);
    }
  }
  return text;
}

void ApplyQuality(std::string_view name, const std::set<std::string>& beside, Recipe::Source source,
                  Recipe& recipe) {
  for (const auto& [key, value] : PresetOf(name).settings) {
    recipe.Set(key, value, beside.contains(key) ? Recipe::Source::kPreset : source);
  }
}

}  // namespace equitile
