#include "equitile/io/checkpoint_folder.h"

#include <algorithm>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/config_file.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// Part names with the classes that are understood.
struct PartClasses {
  const char* part;
  std::vector<std::string> classes;
};

void CheckPart(const ConfigFile& index, const PartClasses& known) {
  const auto pair = index.FindTexts(known.part);
  if (!pair || pair->size() != 2) {
    throw InputError("[io] {}: '{}' must be [library, class]", index.name(), known.part);
  }
  const std::string& name = (*pair)[1];
  if (std::find(known.classes.begin(), known.classes.end(), name) == known.classes.end()) {
    throw InputError("[io] {}: '{}' is a {}, which is not supported; {} is", index.name(),
                     known.part, name, fmt::join(known.classes, ", "));
  }
}

}  // namespace

CheckpointFolder::CheckpointFolder(const fs::path& root) : root_(root) {
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) {
    throw InputError("[io] {}: no such folder; a model is a folder in the layout of diffusers",
                     root.string());
  }
  if (!fs::exists(root / "model_index.json", ignored)) {
    throw InputError(
        "[io] {}: has no model_index.json; a model is a folder in the layout of "
        "diffusers",
        root.string());
  }
  const ConfigFile index(root / "model_index.json");
  if (!index.Has("_class_name")) {
    throw InputError("[io] {}: '_class_name' is missing; WanPipeline is expected", index.name());
  }
  index.CheckClass("WanPipeline");
  CheckPart(index, {"transformer", {"WanTransformer3DModel"}});
  CheckPart(index, {"vae", {"AutoencoderKLWan"}});
  CheckPart(index, {"text_encoder", {"UMT5EncoderModel"}});
  CheckPart(index, {"tokenizer", {"T5TokenizerFast", "T5Tokenizer"}});
  CheckPart(index, {"scheduler", {"UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"}});
  for (const char* key : {"boundary_ratio", "expand_timesteps"}) index.CheckUnused(key);
  if (const auto second = index.FindTexts("transformer_2")) {
    const auto there = [](const std::string& word) { return !word.empty(); };
    if (std::any_of(second->begin(), second->end(), there)) {
      throw InputError("[io] {}: 'transformer_2': models with two transformers are not supported",
                       index.name());
    }
  }
}

fs::path CheckpointFolder::Part(const std::string& name) const {
  std::error_code ignored;
  fs::path part = root_ / name;
  if (!fs::exists(part, ignored)) {
    throw InputError("[io] {}: '{}' is missing", root_.string(), name);
  }
  return part;
}

}  // namespace equitile
