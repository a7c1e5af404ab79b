// Names for combinations of what trades likeness to the exact video for time.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "equitile/generate/recipe.h"

namespace equitile {

struct QualityPreset {
  std::string name;
  // Key and text of every field of the recipe that a preset decides.
  std::vector<std::pair<std::string, std::string>> settings;
};

// From exact to fast. Nothing is promised for a model on which they were not measured.
std::span<const QualityPreset> QualityPresets();
std::vector<std::string> QualityNames();
std::string QualityHelp();  // what each of them stands for

// Sets what the preset decides, as if it had been given where `source` says; what was said for the
// keys `beside` counts more.
void ApplyQuality(std::string_view name, const std::set<std::string>& beside, Recipe::Source source,
                  Recipe& recipe);

}  // namespace equitile
