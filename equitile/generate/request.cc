#include "equitile/generate/request.h"

#include <fmt/format.h>

#include <map>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/generate/attention_choice.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/pipeline.h"
#include "equitile/generate/sidecar.h"
#include "equitile/generate/vocabulary.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/json_value.h"
#include "equitile/io/machine_file.h"
#include "equitile/io/numbered_png.h"
#include "equitile/io/safetensors.h"
#include "equitile/kernel/target.h"
#include "equitile/model/text/text_clean.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/sparsity/attention_watch.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

void MakeFolder(const fs::path& folder, bool is_dry) {
  CheckWritable(folder);
  if (is_dry) return;
  std::error_code error;
  if (fs::create_directory(folder, error); error) {
    throw InputError("{}: cannot be made: {}", folder.string(), error.message());
  }
}

// The folder of numbered pictures is made where it is missing.
void CheckVideo(const GenerateRequest& request, const GenerateTask& task) {
  if (task.output.empty()) return;
  const fs::path folder = task.output.parent_path();
  std::error_code error;
  if (IsNumberedPng(task.output) && !folder.empty() && !fs::exists(folder, error)) {
    MakeFolder(folder, request.options.is_dry);
    if (request.options.is_dry) return;
  }
  CheckVideoOutput(task.output, request.VideoOf(task));
}

// The record of an earlier run is replaced with its video; nothing else is.
void CheckSidecar(const fs::path& path) {
  std::error_code error;
  if (path.empty() || !fs::is_regular_file(path, error) || IsSidecar(path)) return;
  throw InputError(
      "{}: is not a record of a video, and one would be written there; move it, or give the video "
      "another name",
      path.string());
}

// A folder for a file per step and layer. Whoever reads it takes all that it holds for one run.
void CheckExport(const GenerateRequest& request, const fs::path& folder) {
  const bool is_dry = request.options.is_dry;
  if (folder.empty()) return;
  std::error_code error;
  if (!fs::exists(folder, error)) MakeFolder(folder, is_dry);
  if (is_dry && !fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error)) throw InputError("{}: is not a folder", folder.string());
  if (!is_dry) CheckWritable(folder / CallFileName(0, 0));
  if (request.options.resumes) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".npy") continue;
    throw InputError(
        "{}: holds files of an earlier run, which would mix with those of this one; give another "
        "folder, or --resume that run",
        folder.string());
  }
}

// Every file that the request reads or writes, with what it is; none may be written over another.
void CheckFiles(const GenerateRequest& request) {
  std::map<fs::path, const char*> known;
  const auto add = [&](const fs::path& path, const char* what) {
    std::error_code ignored;
    return known.emplace(fs::weakly_canonical(fs::absolute(path), ignored), what);
  };
  const auto reads = [&](const fs::path& path, const char* what) {
    if (!path.empty()) add(path, what);
  };
  const fs::path mask = AttentionFile(request.recipe.Text("attention"));
  if (!mask.empty()) {
    reads(mask, "the mask");
    reads(fs::path(mask).replace_extension(".json"), "the description of the mask");
  }
  reads(request.options.prompts, "the prompts");
  reads(request.recipe.Text("machine"), "the rates of the machine");
  const auto writes = [&](const fs::path& path, const char* what) {
    if (path.empty()) return;
    const auto [other, is_new] = add(path, what);
    if (!is_new && !IsStream(path)) {
      throw InputError("{}: cannot hold both {} and {}; give another name", path.string(),
                       other->second, what);
    }
    if (!request.options.is_dry && !IsNumberedPng(path)) CheckWritable(path);
  };
  const auto fills = [&](const fs::path& folder, const char* what) {
    if (folder.empty()) return;
    if (const auto [other, is_new] = add(folder, what); !is_new) {
      throw InputError("{}: cannot hold both {} and {}; give another folder", folder.string(),
                       other->second, what);
    }
    CheckExport(request, folder);
  };
  for (const GenerateTask& task : request.tasks) {
    writes(task.output, "the video");
    writes(task.save_latents, "the latents");
    writes(task.checkpoint, "the checkpoint");
    writes(task.sidecar, "the parameters of the run");
    CheckSidecar(task.sidecar);
    writes(task.perf_dump, "the seconds of the run");
    writes(task.preview, "the preview");
    fills(task.masks, "the masks of all steps");
    fills(task.masses, "the masses of all steps");
  }
  writes(request.options.trace, "the trace");
}

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
  for (const std::string& remark : {chosen.warning, chosen.advice}) {
    if (!remark.empty()) request.remarks.push_back(remark);
  }
  if (chosen.hash != 0) recipe.Find("mask_hash", HashText(chosen.hash));
  if (chosen.options.attention.IsSparse())
    recipe.Settle("dense_steps", fmt::format("{}", chosen.options.warm_up.dense_steps));
  request.sparsity = std::move(chosen.options);
  if (recipe.Has("machine")) {
    const std::string text = ReadTextFile(recipe.Text("machine"));
    request.machine = ParseMachineFile(text, recipe.Text("machine"));
    const Compute linear = ComputeOf(recipe).linear;
    if (linear != Compute::kF32 && request.machine->linear.empty()) {
      request.remarks.push_back(fmt::format(
          "{}: was measured before there were rates of {}; estimates take those of f32 (`equitile "
          "bench machine` measures anew)",
          recipe.Text("machine"), ComputeName(linear)));
    }
    recipe.Find("machine_hash", HashText(Hasher().Add(std::string_view(text)).Digest()));
  }
  recipe.Find("model_fingerprint", HashText(fingerprint));
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
  const std::optional<Vocabulary> vocabulary = Vocabulary::Of(request.folder.root());
  if (!vocabulary) return;
  std::vector<std::string> prompts;
  for (const GenerateTask& task : request.tasks) prompts.push_back(task.prompt);
  if (const std::string remark = vocabulary->Remark(prompts); !remark.empty()) {
    request.remarks.push_back(remark);
  }
}

// A recorded run is made again with the SIMD target that it had, where this machine has that too.
void UseRecordedTarget(const Recipe& recipe, const RunOptions& options) {
  if (recipe.SourceOf("target") != Recipe::Source::kRecord) return;
  const Target target = ParseTarget(recipe.Text("target"));
  if (TargetSupported(target)) return SetTarget(target);
  if (options.allows_other_target) return;
  throw InputError(
      "--from: was made with {}, which is not to be had here; --allow-other-target makes it with "
      "{}, and other bits",
      recipe.Text("target"), TargetName(ActiveTarget()));
}

}  // namespace

VideoOptions GenerateRequest::VideoOf(const GenerateTask& task) const {
  VideoOptions options{.height = config.height,
                       .width = config.width,
                       .frames = config.frames,
                       .fps = config.fps,
                       .title = task.prompt};
  const bool is_said = recipe.SourceOf("crf") == Recipe::Source::kGiven;
  if (recipe.Has("crf") && (is_said || HasCrf(task.output))) options.crf = recipe.Integer("crf");
  return options;
}

GenerateRequest CheckedRequest(Recipe recipe, const RunOptions& options) {
  std::vector<GenerateTask> tasks = MakeTasks(recipe, options);
  UseRecordedTarget(recipe, options);
  const CheckpointFolder folder(recipe.Text("model"));
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
  CheckModelSizes(request.config, transformer);
  CheckVaeFits(folder, ReadVaeConfig(folder.Config("vae")), transformer);
  CleanPrompt(request.config.negative_prompt);  // throws where it is not UTF-8
  if (options.ranks > 0) {
    ParsePlanner(request.recipe.Text("planner"), options.ranks);
    request.recipe.Settle("ranks", fmt::format("{}", options.ranks));
  }
  ReadNamedFiles(request);
  AddRemarks(request);
  for (const GenerateTask& task : request.tasks) CheckVideo(request, task);
  CheckFiles(request);
  return request;
}

}  // namespace equitile
