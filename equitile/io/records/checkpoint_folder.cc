#include "equitile/io/records/checkpoint_folder.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/records/config_file.h"

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

constexpr const char* kWanted =
    "a folder as diffusers saves it: model_index.json, transformer, vae, text_encoder, tokenizer, "
    "scheduler";

// By an ending such as .npy or .safetensors; that of Wan2.1 is none.
bool LooksLikeFile(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending.size() > 1 && std::isalpha(static_cast<unsigned char>(ending[1])) != 0 &&
         ending.find('-') == ending.npos;
}

// "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", also as its address: two words, nothing of which is there.
// "": something else.
std::string HubName(const fs::path& path) {
  std::string text = path.string();
  bool is_address = false;
  for (const std::string_view before : {"https://", "http://", "huggingface.co/", "hf.co/"}) {
    if (!text.starts_with(before)) continue;
    text.erase(0, before.size());
    is_address = true;
  }
  const size_t slash = text.find('/');
  if (slash == text.npos || slash == 0 || text[0] == '.') return "";
  if (!is_address && LooksLikeFile(path)) return "";
  const size_t end = std::min(text.find('/', slash + 1), text.size());
  std::error_code ignored;
  if (!is_address && (end < text.size() || fs::exists(path.parent_path(), ignored))) return "";
  return end > slash + 1 ? text.substr(0, end) : "";
}

std::string HowToFetch(const std::string& name) {
  const std::string folder = name.substr(name.find('/') + 1);
  return fmt::format("hf download {} --local-dir {}, then -m {}", name, folder, folder);
}

// Of a repository of the hub; of Wan's we know which one runs here.
std::string AdviceForHubName(const std::string& name) {
  constexpr const char* kRuns = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers";
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (has("GGUF") || has("gguf")) {
    return fmt::format("GGUF files are not read; {} runs: {}", kRuns, HowToFetch(kRuns));
  }
  if (has("Wan2.2") || (has("Wan") && (has("I2V") || has("FLF2V") || has("VACE")))) {
    return fmt::format("{} is not supported; {} runs: {}",
                       has("Wan2.2") ? "Wan2.2" : "a model that starts from pictures", kRuns,
                       HowToFetch(kRuns));
  }
  if (has("Wan2.1-T2V") && !has("-Diffusers")) {
    return fmt::format("is in the layout of Wan's own program; take the one of diffusers: {}",
                       HowToFetch(name + "-Diffusers"));
  }
  return fmt::format("no such folder; if it is a name on the Hugging Face hub, fetch it first: {}",
                     HowToFetch(name));
}

// What to do about `root`, which is not a folder.
std::string AdviceForNoFolder(const fs::path& root) {
  std::error_code ignored;
  if (root.extension() == ".gguf") {
    return fmt::format("GGUF files are not read; give -m {}, in f32, bf16 or f16", kWanted);
  }
  if (fs::is_regular_file(root, ignored)) {
    return fmt::format("is a single file, which holds one part of a model; give -m {}", kWanted);
  }
  if (const std::string name = HubName(root); !name.empty()) return AdviceForHubName(name);
  return fmt::format("no such folder; a model is {}", kWanted);
}

// A checkpoint as the authors of Wan publish it for their own program.
bool IsOriginalLayout(const fs::path& root) {
  std::error_code ignored;
  if (fs::exists(root / "Wan2.1_VAE.pth", ignored) || fs::exists(root / "google/umt5-xxl", ignored))
    return true;
  return fs::exists(root / "high_noise_model", ignored);
}

void CheckLayout(const fs::path& root) {
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) {
    throw InputError("[io] {}: {}", root.string(), AdviceForNoFolder(root));
  }
  if (fs::exists(root / "model_index.json", ignored)) return;
  if (IsOriginalLayout(root)) {
    throw InputError(
        "[io] {}: has no model_index.json: it is in the layout of Wan's own program; take the "
        "checkpoint of the same name that ends in -Diffusers",
        root.string());
  }
  throw InputError("[io] {}: has no model_index.json; a model is {}", root.string(), kWanted);
}

// Wan2.2 comes in two kinds, neither of which is a Wan2.1 with another name.
void RefuseWan22(const ConfigFile& index) {
  const auto second = index.FindTexts("transformer_2");
  const auto there = [](const std::string& word) { return !word.empty(); };
  const bool has_second = second && std::any_of(second->begin(), second->end(), there);
  if (has_second || index.IsOn("boundary_ratio")) {
    throw InputError(
        "[io] {}: '{}': Wan2.2 denoises with two transformers, one for high and one for low noise; "
        "this program runs models with one, such as Wan2.1",
        index.name(), has_second ? "transformer_2" : "boundary_ratio");
  }
  if (index.IsOn("expand_timesteps")) {
    throw InputError(
        "[io] {}: 'expand_timesteps': Wan2.2 5B has a time per token and another VAE; this program "
        "runs models with one time for all tokens, such as Wan2.1",
        index.name());
  }
}

}  // namespace

bool IsHubName(const fs::path& path) { return !HubName(path).empty(); }

CheckpointFolder::CheckpointFolder(const fs::path& root) : root_(root) {
  CheckLayout(root);
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
  RefuseWan22(index);
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
