// What --attention says: a kind of masks, and the file that some kinds read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "equitile/generate/field_type.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/sparsity/file_masks.h"

namespace equitile {

// The text of an AttentionSpec: "dense" or "mask:FILE". The file's name is no part of the identity;
// what it holds is a field of its own.
FieldType AttentionType();

std::filesystem::path AttentionFile(const std::string& attention);  // "" where it names none

struct ChosenMask {
  MaskTable mask;     // for all passes
  uint64_t hash = 0;  // of what the files hold
};

// Throws InputError, with the file's name, where it does not fit the video.
ChosenMask ReadChosenMask(const std::filesystem::path& path, const GenerationConfig& config,
                          const WanConfig& model);

}  // namespace equitile
