// The flags of `equitile generate`, in the habits of stable-diffusion.cpp.
#include "apps/generate/generate_flags.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "apps/cli/flags.h"
#include "apps/cli/model_path.h"
#include "apps/cli/terminal.h"
#include "apps/cli/trace_output.h"
#include "apps/generate/recipe_flags.h"
#include "equitile/base/checked_value.h"
#include "equitile/base/error.h"
#include "equitile/generate/quality_preset.h"
#include "equitile/generate/sidecar.h"
#include "equitile/kernel/target.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

void AddWhat(CLI::App& app, GenerateFlags& flags) {
  app.add_option(
         "--prompts,--prompt-file", flags.options.prompts,
         "one video per line, `prompt` or `seed<TAB>prompt`, # begins a comment; outputs get "
         "numbers, and lines without a seed --seed and the next ones")
      ->type_name("FILE");
  app.add_option("--from", flags.from,
                 "an earlier video, or the .json beside it: makes the same again; other flags "
                 "change it")
      ->type_name("FILE");
}

void AddLayout(CLI::App& app, GenerateFlags& flags) {
  AddRanks(app, flags.ranks);
  AddNumber(app, "--ulysses-degree", flags.ulysses_degree, {.min = 1, .max = 1 << 20},
            "with --ring-degree R: the same as --planner usp:UxR");
  AddNumber(app, "--ring-degree", flags.ring_degree, {.min = 1, .max = 1 << 20},
            "see --ulysses-degree");
}

// Rows of each lane by which masks are judged unless somebody says how many: with blocks of 64
// tokens as many queries as the published methods sample several times over, at a few percent of
// dense attention.
constexpr int64_t kMeasuredQBlocks = 4;

void AddWatching(CLI::App& app, RunOptions& options) {
  app.add_option("--export-masks", options.masks,
                 "a mask file per step and layer, for mask:DIR and `equitile plan --mask DIR`")
      ->type_name("DIR");
  app.add_option("--export-masses", options.masses,
                 "exact block masses per step and layer, as .npy; costs a dense run of each")
      ->type_name("DIR");
  app.add_option_function<std::vector<std::string>>(
         "--measure-mass",
         [&options](const std::vector<std::string>& values) {
           const std::string text = values.empty() ? "" : values.front();
           options.measured_q_blocks =
               text.empty() ? kMeasuredQBlocks
                            : ParseNumber("--measure-mass", text,
                                          Bounds<int64_t>{.min = 1, .max = INT32_MAX});
         },
         "how much of the attention masks hold, measured on so many query blocks of each head "
         "(default: 4)")
      ->expected(0, 1)
      ->allow_extra_args(false)
      ->type_name("[SAMPLE]");
}

void AddSurviving(CLI::App& app, GenerateFlags& flags) {
  RunOptions& options = flags.options;
  app.add_option_function<std::vector<std::string>>(
         "--resume",
         [&options](const std::vector<std::string>& values) {
           options.resumes = true;
           options.resume = values.empty() ? "" : values.front();
         },
         "go on from a checkpoint; default: OUTPUT.ckpt")
      ->expected(0, 1)
      ->allow_extra_args(false)
      ->type_name("[FILE]");
  app.add_flag("--allow-other-target", options.allows_other_target,
               "go on, or make again, with another SIMD target than before: other bits");
  AddNumber(app, "--checkpoint-every", flags.checkpoint_every, {.min = 1, .max = 1000},
            "steps between checkpoints; default: 5, and after every step of over 5 s");
  app.add_flag("--keep-checkpoint", options.keeps_checkpoint, "leave OUTPUT.ckpt when all is done");
  AddNumber(app, "--preview", options.preview_every, {.min = 0, .max = 1000},
            "every N steps a strip of pictures of what is coming, OUTPUT.preview.png; 0: none");
  app.add_flag("--dry-run", options.is_dry,
               "memory, time and layout, before anything is loaded or written");
  app.add_option("--perf-dump-path", options.perf_dump, "seconds by part and step, as JSON")
      ->type_name("FILE");
  app.add_flag("-v,--verbose", flags.verbose, "say at the end how each layer was laid out");
  AddJson(app, flags.json);
}

// The habit of other engines: two degrees mean usp.
void ApplyDegrees(const GenerateFlags& flags, Recipe& recipe) {
  if (!flags.ulysses_degree && !flags.ring_degree) return;
  if (ParsePlannerKind(flags.recipe.Text("planner")) != PlannerKind::kAuto) {
    throw InputError("--planner {}: leave it out where --ulysses-degree or --ring-degree is given",
                     flags.recipe.Text("planner"));
  }
  recipe.Set(
      "planner",
      fmt::format("usp:{}x{}", flags.ulysses_degree.value_or(1), flags.ring_degree.value_or(1)),
      Recipe::Source::kGiven);
}

void AddQuality(CLI::App& app, GenerateFlags& flags) {
  app.add_option_function<std::string>(
         "--quality",
         [&flags](const std::string& text) {
           flags.quality.name = ParseChoice("--quality", text, QualityNames());
         },
         fmt::format("a name for flags, any of which may be given beside it: {}", QualityHelp()))
      ->type_name("WORD");
}

// Keys of the recipe whose flags were given so far.
std::set<std::string> GivenKeys(const CLI::App& app, const Recipe& recipe) {
  std::set<std::string> keys;
  for (const RecipeField& field : recipe.fields()) {
    if (field.flags.empty()) continue;
    const CLI::Option* option = app.get_option_no_throw(field.LongFlag());
    if (option != nullptr && option->count() > 0) keys.insert(field.key);
  }
  return keys;
}

// What was written beside a video stands for it.
std::filesystem::path RecordFor(const std::filesystem::path& from) {
  const std::filesystem::path record = RecordOf(from);
  std::error_code ignored;
  if (std::filesystem::exists(from, ignored) && !std::filesystem::exists(record, ignored)) {
    throw InputError("--from {}: there is no {}, which would say how it was made", from.string(),
                     record.string());
  }
  return record;
}

}  // namespace

void AddMakingFlags(CLI::App& app, GenerateFlags& flags) {
  AddRecipeFlags(app, flags.recipe, {"prompt", "output", "save_latents"});
  AddQuality(app, flags);
  AddConfig(app, flags.config);
  AddLayout(app, flags);
}

void AddGenerateFlags(CLI::App& app, GenerateFlags& flags) {
  AddRecipeFlags(app, flags.recipe);
  AddQuality(app, flags);
  AddConfig(app, flags.config);
  AddWhat(app, flags);
  AddLayout(app, flags);
  AddTrace(app, flags.options.trace);
  AddWatching(app, flags.options);
  AddSurviving(app, flags);
}

void CompleteFlags(CLI::App& app, GenerateFlags& flags) {
  // A preset of the command line counts more than a file's flags; one of the file less.
  const bool is_on_command_line = !flags.quality.name.empty();
  if (is_on_command_line) flags.quality.beside = GivenKeys(app, flags.recipe);
  if (!flags.config.empty()) ApplyConfig(flags.config, app);
  if (!is_on_command_line) flags.quality.beside = GivenKeys(app, flags.recipe);
}

GenerateRequest RequestOf(const GenerateFlags& flags) {
  Recipe recipe = flags.recipe;
  if (!flags.from.empty()) ReadSidecar(RecordFor(flags.from), recipe);
  ApplyDegrees(flags, recipe);
  if (std::getenv("EQUITILE_TARGET") != nullptr) {
    recipe.Set("target", ArithmeticName(ActiveTarget()), Recipe::Source::kGiven);
  }
  if (recipe.Text("model").empty()) {
    recipe.Set("model", FindModel("").string(), Recipe::Source::kGiven);
  }
  if (!flags.quality.name.empty()) {
    ApplyQuality(flags.quality.name, flags.quality.beside, Recipe::Source::kGiven, recipe);
  }
  RunOptions options = flags.options;
  options.checkpoint_every = flags.checkpoint_every.value_or(0);
  if (!UnderLauncher()) {
    const int64_t recorded = recipe.Has("ranks") ? recipe.Integer("ranks") : 1;
    options.ranks = static_cast<int32_t>(flags.ranks.ranks.value_or(recorded));
  }
  GenerateRequest request = CheckedRequest(std::move(recipe), options);
  for (const std::string& remark : request.remarks) Remark(remark);
  return request;
}

RanksRequest RanksOf(const GenerateFlags& flags, const GenerateRequest& request) {
  RanksRequest ranks = flags.ranks;
  if (request.options.ranks > 0) ranks.ranks = request.options.ranks;
  return ranks;
}

void Remark(std::string_view line) {
  if (!IsFirstProcess()) return;
  fmt::print(stderr, "equitile: {}\n", Terminal::Of(stderr).Letters(std::string(line)));
}

}  // namespace equitile
