#include "equitile/generate/request.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/generate/attention_choice.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/pipeline.h"
#include "equitile/generate/vocabulary.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/kernel/target.h"
#include "equitile/model/text/text_clean.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

void CheckAxis(const char* what, int64_t patches, int64_t most) {
  if (patches > most) {
    throw InputError("{} {} patches: the model was made for at most {}", patches, what, most);
  }
}

void CheckModelSizes(const GenerationConfig& config, const WanConfig& model) {
  CheckAxis("frame", config.LatentFrames() / model.patch.frames, model.rope_max_seq_len);
  CheckAxis("height", config.LatentHeight() / model.patch.height, model.rope_max_seq_len);
  CheckAxis("width", config.LatentWidth() / model.patch.width, model.rope_max_seq_len);
}

// Opens every part, so that whatever is wrong with a header is said before work begins.
uint64_t Fingerprint(const CheckpointFolder& folder) {
  Hasher hasher;
  for (const char* part : {"transformer", "text_encoder", "vae"}) {
    hasher.Add(std::string_view(ReadTextFile(folder.Config(part))));
    hasher.Add(TensorFiles::OpenFolder(folder.Part(part)).Fingerprint());
  }
  for (const char* file : {"tokenizer.json", "spiece.model"}) {
    std::error_code ignored;
    const fs::path path = folder.Part("tokenizer") / file;
    if (fs::exists(path, ignored)) hasher.Add(std::string_view(ReadTextFile(path)));
  }
  return hasher.Digest();
}

// Files that the recipe names are read; what they hold becomes part of it.
void ReadNamedFiles(GenerateRequest& request) {
  Recipe& recipe = request.recipe;
  const uint64_t fingerprint = Fingerprint(request.folder);
  ChosenSparsity chosen = ChooseSparsity(recipe, {.config = request.config,
                                                  .model = request.transformer,
                                                  .folder = request.folder.root(),
                                                  .fingerprint = fingerprint});
  std::ranges::move(chosen.remarks, std::back_inserter(request.remarks));
  if (chosen.hash != 0) recipe.Find("mask_hash", HashText(chosen.hash));
  if (chosen.options.attention.IsSparse())
    recipe.Settle("dense_steps", fmt::format("{}", chosen.options.warm_up.dense_steps));
  request.sparsity = std::move(chosen.options);
  if (recipe.Has("machine")) {
    const std::string text = ReadTextFile(recipe.Text("machine"));
    request.machine = ParseMachineFile(text, recipe.Text("machine"));
    const ComputeChoice compute = ComputeOf(recipe);
    if (std::string missing =
            MissingRates(*request.machine, recipe.Text("machine"), ComputeName(compute.attention),
                         ComputeName(compute.linear));
        !missing.empty()) {
      request.remarks.push_back(std::move(missing));
    }
    recipe.Find("machine_hash", HashText(Hasher().Add(std::string_view(text)).Digest()));
  }
  recipe.Find("model_fingerprint", HashText(fingerprint));
  if (ComputeOf(recipe).linear == Compute::kInt8) {
    const TensorFiles files = TensorFiles::OpenFolder(request.folder.Part("transformer"));
    recipe.Find("int16_layers", Int16LayersText(WanWeights::StayInt16(files, request.transformer)));
  }
}

// Those that were given and only matter where blocks are left out. A search does so by itself.
std::vector<std::string> FlagsOfMasks(const GenerateRequest& request) {
  const Recipe& recipe = request.recipe;
  std::vector<std::string> flags;
  if (request.options.files == VideoFiles::kNone) return flags;
  for (const RecipeField& field : recipe.fields()) {
    const bool is_given = recipe.SourceOf(field.key) == Recipe::Source::kGiven &&
                          recipe.Text(field.key) != field.initial;  // which a preset may say
    for (const char* key : {"dense_steps", "dense_layers", "dense_last_step", "share_passes"}) {
      if (field.key == key && is_given) flags.push_back(field.LongFlag());
    }
  }
  if (request.options.measured_q_blocks > 0) flags.push_back("--measure-mass");
  return flags;
}

// What was asked for and will not be seen in the video.
void AddRemarks(GenerateRequest& request) {
  const Recipe& recipe = request.recipe;
  if (request.config.Passes() == 1 &&
      recipe.SourceOf("negative_prompt") == Recipe::Source::kGiven) {
    request.remarks.push_back(fmt::format(
        "--negative-prompt is ignored: --cfg-scale {} is without guidance; more than 1 is with it",
        recipe.Text("cfg_scale")));
  }
  if (const auto flags = FlagsOfMasks(request);
      !flags.empty() && !request.sparsity.attention.IsSparse()) {
    request.remarks.push_back(
        fmt::format("{}: without effect, since --attention {} leaves no blocks out",
                    fmt::join(flags, ", "), recipe.Text("attention")));
  }
  const std::optional<Vocabulary> vocabulary = Vocabulary::Of(request.folder.root());
  if (!vocabulary) return;
  std::vector<std::string> prompts;
  for (const GenerateTask& task : request.tasks) prompts.push_back(task.prompt);
  if (const std::string remark = vocabulary->Remark(prompts); !remark.empty()) {
    request.remarks.push_back(remark);
  }
}

// A recorded run is made again with a SIMD target of the same bits, where this machine has one.
void UseRecordedTarget(const Recipe& recipe, const RunOptions& options) {
  if (recipe.SourceOf("target") != Recipe::Source::kRecord) return;
  const std::string_view arithmetic = ParseArithmetic(recipe.Text("target"));
  if (arithmetic == ArithmeticName(ActiveTarget())) return;
  if (const auto target = TargetOf(arithmetic)) return SetTarget(*target);
  if (options.allows_other_target) return;
  throw InputError(
      "--from: was made with {}, which is not to be had here; --allow-other-target makes it with "
      "{}, and other bits",
      recipe.Text("target"), TargetName(ActiveTarget()));
}

CheckpointFolder ModelOf(const Recipe& recipe) {
  const fs::path path = recipe.Text("model");
  std::error_code ignored;
  if (recipe.SourceOf("model") == Recipe::Source::kRecord && !fs::is_directory(path, ignored)) {
    throw InputError(
        "--from: the record names the model {}, which is not there; -m DIR says where "
        "it is now",
        path.string());
  }
  return CheckpointFolder(path);
}

}  // namespace

GenerateRequest PlainRequest(Recipe recipe, const RunOptions& options) {
  std::vector<GenerateTask> tasks = MakeTasks(recipe, options);
  UseRecordedTarget(recipe, options);
  const CheckpointFolder folder = ModelOf(recipe);
  const WanConfig transformer = ReadWanConfig(folder.Config("transformer"));
  recipe.SetModelDefaults(ReadGenerationConfig(folder));
  GenerateRequest request{.recipe = std::move(recipe),
                          .options = options,
                          .tasks = std::move(tasks),
                          .folder = folder,
                          .config = {},
                          .transformer = transformer};
  request.config = request.recipe.Config();
  CheckSizes(request.config);
  CheckComputeFits(request.recipe);
  SettleWire(request.recipe);
  CheckModelSizes(request.config, transformer);
  CheckVaeFits(folder, ReadVaeConfig(folder.Config("vae")), transformer);
  CleanPrompt(request.config.negative_prompt);  // throws where it is not UTF-8
  if (options.ranks > 0) {
    ParsePlanner(request.recipe.Text("planner"), options.ranks);
    request.recipe.Settle("ranks", fmt::format("{}", options.ranks));
  }
  ReadNamedFiles(request);
  AddRemarks(request);
  return request;
}

}  // namespace equitile
