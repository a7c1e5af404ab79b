// Flags from the table of the recipe, and files of flags.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/generate/recipe.h"

namespace equitile {

// One flag for every field that has one, but for those with the keys `without`; switches get a
// --no-NAME too. What is given goes into the recipe, which must outlive the app.
void AddRecipeFlags(CLI::App& app, Recipe& recipe,
                    const std::vector<std::string_view>& without = {});

// --config FILE of an app: see ApplyConfig.
CLI::Option* AddConfig(CLI::App& app, std::string& path);

// Gives the app, when its arguments are parsed, those of the flags in the file that were not given:
// keys are long names of flags, with - or _, and true and false stand for switches. Throws
// InputError with the file's name for what would be wrong as an argument, and for unknown keys.
void ApplyConfig(const std::string& path, CLI::App& app);

}  // namespace equitile
