// The .json beside a video: everything needed to make it again ("parameters", the recipe), and what
// happened when it was made ("run").
#pragma once

#include <filesystem>

#include "equitile/generate/recipe.h"
#include "equitile/io/json_value.h"

namespace equitile {

Json SidecarJson(const Recipe& recipe, Json run);

// Whether a file is one: what another program or person wrote is not ours to replace.
bool IsSidecar(const std::filesystem::path& path);

// The record of what was made: beside a video, of a folder of pictures, or of the folder that one
// of its pictures is in. It need not be there; of a record it is itself.
std::filesystem::path RecordOf(const std::filesystem::path& made);

// What was recorded becomes a part of the recipe, below what was given. Reads those of all earlier
// versions. Throws InputError for a file that is not a sidecar.
void ReadSidecar(const std::filesystem::path& path, Recipe& recipe);

}  // namespace equitile
