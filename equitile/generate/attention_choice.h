// What the recipe says about self-attention: a kind of masks, and the file that some kinds read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "equitile/generate/field_type.h"
#include "equitile/generate/recipe.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/sparsity/make_source.h"

namespace equitile {

// The text of an AttentionSpec. The file's name is no part of the identity; what it holds is a
// field of its own.
FieldType AttentionType();
FieldType DenseStepsType();  // "20%", "4", or "auto": as is usual for the kind of attention
FieldType CacheType();

std::filesystem::path AttentionFile(const std::string& attention);  // "" where it names none

struct ChosenSparsity {
  SparsityOptions options;
  uint64_t hash = 0;  // of what the files hold; 0 without files
  // Each in one line: what fits badly, what does nothing, why it is hardly worth it.
  std::vector<std::string> remarks;
};

struct SparsityUse {
  GenerationConfig config;
  WanConfig model;
  std::filesystem::path folder;  // of the model
  uint64_t fingerprint = 0;      // of its weights
};

// What the recipe asks for, with the files that it names; a pattern without a file is the model's
// own. Throws InputError where they do not fit the video, or it cannot work.
ChosenSparsity ChooseSparsity(const Recipe& recipe, const SparsityUse& use);

}  // namespace equitile
