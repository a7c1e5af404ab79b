#include "apps/search/search_flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "apps/cli/flags.h"
#include "apps/generate/recipe_flags.h"
#include "equitile/base/error.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/io/atomic_write.h"
#include "equitile/sparsity/attention_spec.h"

namespace equitile {
namespace {

// Fields of the recipe that say nothing about a calibration.
const std::vector<std::string_view> kOtherFields = {"prompt",
                                                    "output",
                                                    "save_latents",
                                                    "fps",
                                                    "crf",
                                                    "seed",
                                                    "attention",
                                                    "dense_layers",
                                                    "cache",
                                                    "share_passes",
                                                    "dense_last_step",
                                                    "vae_tiling",
                                                    "reuse_threshold"};

Objective ObjectiveOf(const std::string& name) {
  for (Objective objective : {Objective::kPaper, Objective::kRelative, Objective::kBudget}) {
    if (ObjectiveName(objective) == name) return objective;
  }
  EQ_CHECK(false, "objective {}", name);
}

StepRangesKind StepRangesOf(const SearchFlags& flags) {
  if (flags.step_ranges == "1") return StepRangesKind::kOne;
  if (flags.step_ranges == "each") return StepRangesKind::kEach;
  if (flags.step_ranges.empty() && flags.objective == "paper") return StepRangesKind::kEach;
  return StepRangesKind::kAuto;
}

void SetTarget(const SearchFlags& flags, ChoiceDials& dials) {
  const struct {
    const char* flag;
    const std::optional<double>& value;
    TargetKind kind;
  } targets[] = {{"--density", flags.density, TargetKind::kDensity},
                 {"--error", flags.error, TargetKind::kError},
                 {"--speedup", flags.speedup, TargetKind::kSpeedup}};
  const char* given = nullptr;
  for (const auto& target : targets) {
    if (!target.value) continue;
    if (MakesMasks(flags)) {
      if (target.kind == TargetKind::kDensity) continue;
      throw InputError("{} {}: is a budget's; {} goes by --density", target.flag, *target.value,
                       flags.objective);
    }
    if (flags.objective != "budget") {
      throw InputError("{} {}: is a budget's; {} goes by --lambda and --epsilon", target.flag,
                       *target.value, flags.objective);
    }
    if (given != nullptr) throw InputError("give one of {} and {}", given, target.flag);
    given = target.flag;
    dials.target = target.kind;
    dials.target_value = *target.value;
  }
}

void RefuseOthersDials(const SearchFlags& flags) {
  if (flags.objective != "paper" && flags.objective != "relative") {
    const char* kWhose = "is a dial of paper and relative";
    if (flags.lambda) throw InputError("--lambda {}: {}", *flags.lambda, kWhose);
    if (flags.epsilon) throw InputError("--epsilon {}: {}", *flags.epsilon, kWhose);
  }
  if (MakesMasks(flags) && !flags.step_ranges.empty())
    throw InputError("--step-ranges {}: {} has one mask for all steps", flags.step_ranges,
                     flags.objective);
  if (MakesMasks(flags) && !flags.report.empty())
    throw InputError("--report {}: {} makes masks, not modes to look at", flags.report,
                     flags.objective);
  if (flags.validate == 0 && !flags.validate_at.empty())
    throw InputError("--validate-at {}: how many videos? give --validate N",
                     fmt::join(flags.validate_at, ","));
  if (!flags.validate_at.empty() && flags.validate_at.size() != 3)
    throw InputError("--validate-at {}: must be WIDTH,HEIGHT,FRAMES",
                     fmt::join(flags.validate_at, ","));
  if (MakesMasks(flags) && flags.validate > 0) {
    throw InputError("--validate {}: {} makes masks; `equitile compare --prompts` judges them",
                     flags.validate, flags.objective);
  }
  if (flags.mode_density && flags.objective != "paper") {
    throw InputError("--mode-density {}: only paper has modes of one size", *flags.mode_density);
  }
  if (flags.objective != "budget") {
    constexpr const char* kOnlyBudget = "only a budget has candidates to choose between, not";
    if (flags.choice_videos) {
      throw InputError("--choice-videos {}: {} {}", *flags.choice_videos, kOnlyBudget,
                       flags.objective);
    }
    if (flags.looks_twice) {
      throw InputError("--{}second-look: {} {}", *flags.looks_twice ? "" : "no-", kOnlyBudget,
                       flags.objective);
    }
  }
  if (MakesMasks(flags) && flags.for_ranks) {
    throw InputError("--for-ranks {}: {} goes by --density, whoever computes it", *flags.for_ranks,
                     flags.objective);
  }
}

void CheckReport(const SearchFlags& flags) {
  std::error_code ignored;
  const auto place = [&](const std::string& file) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file), ignored);
  };
  if (place(flags.report) == place(flags.output))
    throw InputError("--report {}: is the pattern file's own name; give the page another one",
                     flags.report);
  CheckWritable(flags.report);
}

// What is written must not be what is read, nor a checkpoint take the place of something else.
void CheckFiles(const SearchFlags& flags, const std::string& machine) {
  std::error_code ignored;
  for (const std::string& read : {flags.making.options.prompts, flags.validation, machine}) {
    for (const std::string& written : {flags.output, flags.report}) {
      if (read.empty() || !std::filesystem::equivalent(read, written, ignored)) continue;
      throw InputError("{}: is read by this search; write to another name", written);
    }
  }
  CheckCheckpointPlace(flags.output + ".ckpt");
}

// So many of the prompts, spread over the file: neighbours are often alike.
std::vector<GenerateTask> Spread(const std::vector<GenerateTask>& all, int64_t count) {
  const auto lines = std::ssize(all);
  std::vector<GenerateTask> tasks;
  for (int64_t i = 0; i < count; ++i) tasks.push_back(all[static_cast<size_t>(i * lines / count)]);
  return tasks;
}

std::vector<GenerateTask> Chosen(const std::vector<GenerateTask>& all, const SearchFlags& flags) {
  std::vector<GenerateTask> tasks;
  for (GenerateTask task : Spread(all, std::min(flags.count, std::ssize(all)))) {
    if (flags.seeds.empty()) tasks.push_back(task);
    for (int64_t seed : flags.seeds) {
      task.seed = static_cast<uint64_t>(seed);
      tasks.push_back(task);
    }
  }
  return tasks;
}

}  // namespace

void AddSearchFlags(CLI::App& app, SearchFlags& flags) {
  AddRecipeFlags(app, flags.making.recipe, kOtherFields);
  AddConfig(app, flags.making.config);
  AddRanks(app, flags.making.ranks);
  app.add_option("--prompts", flags.making.options.prompts,
                 "what to calibrate on, one prompt per line, `prompt` or `seed<TAB>prompt`")
      ->type_name("FILE")
      ->required();
  AddNumber(app, "--count", flags.count, {.min = 1, .max = 1 << 20},
            "prompts that are used, spread over the file");
  AddNumbers(app, "--seeds", flags.seeds, {.min = 0, .max = INT64_MAX},
             "every prompt with each of them; default: the line's own, else 42 for the first line "
             "of the file and one more for every line after it");
  AddChoice(
      app, "--objective", flags.objective, {"budget", "paper", "relative", "static", "sta"},
      "budget: one for the whole model; paper: Sparse-vDiT as published; relative: its errors "
      "as parts of the layer's; static: masks in the best of six orders (PARO); sta: a window "
      "of tiles per head");
  AddNumber(app, "--lambda", flags.lambda, {.min = 0, .max = 1e6},
            "paper, relative: what density costs; default 0.5");
  AddNumber(app, "--epsilon", flags.epsilon, {.min = 0, .max = 1e12},
            "paper, relative: heads whose losses are all above it stay full; default 1");
  AddNumber(app, "--mode-density", flags.mode_density, {.min = 1e-3, .max = 1},
            "paper: of each band and of stripes; default 0.3");
  AddNumber(app, "--density", flags.density, {.min = 0, .max = 1},
            "budget: blocks that are left; static, sta: the same, default 0.3");
  AddNumber(
      app, "--error", flags.error, {.min = 0, .max = 1e6},
      "budget: squared error of the layers' outputs, as a part of their squares; default 0.02");
  AddNumber(app, "--speedup", flags.speedup, {.min = 1, .max = 1000},
            "budget: of all steps, as the machine's rates predict it");
  AddChoice(app, "--step-ranges", flags.step_ranges, {"auto", "1", "each"},
            "patterns for parts of the steps: where it pays, one for all, one for each; default: "
            "auto, and each for paper");
  app.add_flag_function(
      "--second-look,!--no-second-look", [&flags](int64_t times) { flags.looks_twice = times > 0; },
      "budget: try all again with earlier layers sparse, and choose between candidates by whole "
      "steps (default)");
  AddNumber(app, "--choice-videos", flags.choice_videos, {.min = 0, .max = 1 << 20},
            "budget: videos of other prompts that decide between the best candidates; 0: whole "
            "steps alone; default 2");
  AddNumber(app, "--validate", flags.validate, {.min = 0, .max = 1 << 20},
            "make so many videos of other prompts, dense and sparse, and note PSNR, SSIM and speed "
            "in the file");
  AddNumbers(app, "--validate-at", flags.validate_at, {.min = 1, .max = 1 << 20},
             "WIDTH,HEIGHT,FRAMES for two of these videos too; default: wider and shorter ones");
  app.add_option("--validation", flags.validation,
                 "prompts for --choice-videos and --validate; default: validation.txt beside the "
                 "prompts")
      ->type_name("FILE");
  AddNumber(app, "--for-ranks", flags.for_ranks, {.min = 1, .max = 4096},
            "count the seconds that a layer's plan takes on so many ranks; default 1");
  app.add_option("--report", flags.report,
                 "write a page here: modes, curve, attention maps, frames, the plan on ranks")
      ->type_name("FILE");
  app.add_option("-o,--output", flags.output,
                 "the pattern file; static, sta: a folder of mask files")
      ->type_name("FILE")
      ->required();
  app.add_flag("--resume", flags.resumes, "go on from OUTPUT.ckpt");
  AddJson(app, flags.json);
}

GenerateRequest RequestOf(const SearchFlags& flags) {
  RefuseOthersDials(flags);
  GenerateFlags making = flags.making;
  making.options.files = VideoFiles::kNone;
  GenerateRequest request = RequestOf(making);
  request.tasks = Chosen(request.tasks, flags);
  if (MakesMasks(flags)) CheckMaskFolder(flags.output);
  CheckWritable(MakesMasks(flags) ? flags.output + ".ckpt" : flags.output);
  if (!flags.report.empty()) CheckReport(flags);
  CheckFiles(flags, request.recipe.Text("machine"));
  return request;
}

namespace {

std::string ValidationFile(const SearchFlags& flags) {
  if (!flags.validation.empty()) return flags.validation;
  return (std::filesystem::path(flags.making.options.prompts).parent_path() / "validation.txt")
      .string();
}

// Videos that choose and videos that judge are of different prompts: what was chosen by them looks
// better on them.
void SetValidation(const SearchFlags& flags, SearchOptions& options) {
  if (LacksValidation(flags) || (flags.validate == 0 && ChoiceVideos(flags) == 0)) return;
  RunOptions reading;
  reading.files = VideoFiles::kNone;
  reading.prompts = ValidationFile(flags);
  std::vector<GenerateTask> all = MakeTasks(flags.making.recipe, reading);
  if (std::ssize(all) < flags.validate) {
    throw InputError("--validate {}: {} has {} prompts", flags.validate, reading.prompts,
                     all.size());
  }
  options.validation = Spread(all, flags.validate);
  std::erase_if(all, [&](const GenerateTask& task) {
    return std::ranges::any_of(options.validation, [&](const GenerateTask& judges) {
      return judges.prompt == task.prompt && judges.seed == task.seed;
    });
  });
  options.choosing = Spread(all, std::min(ChoiceVideos(flags), std::ssize(all)));
}

// About as many tokens in another shape: a quarter wider, two thirds as long.
SearchOptions::Size OtherSize(const SearchFlags& flags, const GenerationConfig& config) {
  if (flags.validate == 0) return {};
  GenerationConfig other = config;
  if (flags.validate_at.empty()) {
    other.width = RoundUp(config.width * 5 / 4, 16);
    other.frames = RoundedFrames(std::max<int64_t>(5, config.frames * 2 / 3));
  } else {
    other.width = flags.validate_at[0];
    other.height = flags.validate_at[1];
    other.frames = flags.validate_at[2];
  }
  CheckSizes(other);
  return {.width = other.width, .height = other.height, .frames = other.frames};
}

int64_t DenseStepsOf(const GenerateRequest& request) {
  const Recipe& recipe = request.recipe;
  const int64_t dense = ParseDenseSteps(
      recipe.IsSettled("dense_steps") ? recipe.Text("dense_steps") : "20%", request.config.steps);
  if (dense < request.config.steps) return dense;
  throw InputError("--dense-steps {}: leaves none of the {} steps to search in", dense,
                   request.config.steps);
}

}  // namespace

int64_t ChoiceVideos(const SearchFlags& flags) {
  return flags.objective == "budget" ? flags.choice_videos.value_or(2) : 0;
}

bool MakesMasks(const SearchFlags& flags) {
  return flags.objective == "static" || flags.objective == "sta";
}

MaskSearchOptions MaskOptionsOf(const SearchFlags& flags, const GenerateRequest& request) {
  ChoiceDials unused;
  SetTarget(flags, unused);
  return {.objective = flags.objective == "static" ? MaskObjective::kStatic : MaskObjective::kSta,
          .density = flags.density.value_or(0.3),
          .dense_steps = DenseStepsOf(request),
          .checkpoint = flags.output + ".ckpt",
          .resumes = flags.resumes};
}

SearchOptions OptionsOf(const SearchFlags& flags, const GenerateRequest& request) {
  SearchOptions options;
  ChoiceDials& dials = options.choice;
  dials.objective = ObjectiveOf(flags.objective);
  dials.loss = {.lambda = flags.lambda.value_or(0.5), .epsilon = flags.epsilon.value_or(1)};
  dials.step_ranges = StepRangesOf(flags);
  SetTarget(flags, dials);
  options.paper_density = flags.mode_density.value_or(options.paper_density);
  options.for_ranks = static_cast<int32_t>(flags.for_ranks.value_or(1));
  options.dense_steps = DenseStepsOf(request);
  options.checkpoint = flags.output + ".ckpt";
  options.resumes = flags.resumes;
  options.looks_twice = flags.looks_twice.value_or(true);
  SetValidation(flags, options);
  options.other_size = OtherSize(flags, request.config);
  return options;
}

bool LacksValidation(const SearchFlags& flags) {
  return flags.validation.empty() && flags.validate == 0 &&
         !std::filesystem::exists(ValidationFile(flags));
}

}  // namespace equitile
