#include "equitile/generate/task.h"

#include <fmt/format.h>

#include <random>

#include "equitile/base/error.h"
#include "equitile/generate/prompts.h"
#include "equitile/io/frames/numbered_png.h"
#include "equitile/model/text/text_clean.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

uint64_t RandomSeed() {
  std::random_device device;
  return device();  // 32 bits: as many as torch's generator uses
}

// "a/out.mp4", 3 -> "a/out-0003.mp4"; "frames/%05d.png" -> "frames-0003/%05d.png".
fs::path Numbered(const fs::path& path, size_t number) {
  if (path.empty()) return path;
  if (IsNumberedPng(path)) {
    const fs::path folder = PictureFolder(path);
    return folder.parent_path() / fmt::format("{}-{:04}", folder.filename().string(), number) /
           path.filename();
  }
  return path.parent_path() /
         fmt::format("{}-{:04}{}", path.stem().string(), number, path.extension().string());
}

std::vector<PromptLine> PromptsOf(const Recipe& recipe, const RunOptions& options) {
  if (options.prompts.empty()) {
    if (recipe.Has("prompt") || options.is_dry) {
      return {{.prompt = recipe.Text("prompt"), .seed = {}}};
    }
    throw InputError("what shall be in the video? give -p PROMPT, --prompts FILE or --from FILE");
  }
  if (recipe.SourceOf("prompt") == Recipe::Source::kGiven) {
    throw InputError("give one of --prompt and --prompts");
  }
  return ReadPrompts(options.prompts);
}

// Where a recorded run wrote counts only as long as nobody says where this one shall write.
std::string OutputOf(const Recipe& recipe, std::string_view key) {
  const bool is_said = recipe.SourceOf("output") == Recipe::Source::kGiven ||
                       recipe.SourceOf("save_latents") == Recipe::Source::kGiven;
  return is_said && recipe.SourceOf(key) == Recipe::Source::kRecord ? "" : recipe.Text(key);
}

// `number` counts from 1; 0: the only one.
void NameFiles(const Recipe& recipe, const RunOptions& options, size_t number, GenerateTask& task) {
  const auto named = [&](const fs::path& path) {
    return number == 0 ? path : Numbered(path, number);
  };
  task.output = named(OutputOf(recipe, "output"));
  task.save_latents = named(OutputOf(recipe, "save_latents"));
  task.perf_dump = named(options.perf_dump);
  task.masks = named(options.masks);
  task.masses = named(options.masses);
  if (task.Name().empty()) {
    if (options.is_dry) return;
    throw InputError("where shall the video go? give -o FILE (or --save-latents FILE)");
  }
  // What lies beside a device or a pipe would be a file in /dev.
  if (IsStream(task.Name())) return;
  task.sidecar = Beside(task.Name(), ".json");
  task.checkpoint = Beside(task.Name(), ".ckpt");
  if (options.preview_every > 0) task.preview = Beside(task.Name(), ".preview.png");
}

}  // namespace

bool IsStream(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

fs::path PictureFolder(const fs::path& output) {
  return output.has_parent_path() ? output.parent_path() : fs::path("frames");
}

fs::path Beside(const fs::path& output, std::string_view ending) {
  fs::path path = IsNumberedPng(output) ? PictureFolder(output) : output;
  return path += ending;
}

Recipe ForTask(Recipe recipe, const GenerateTask& task) {
  recipe.Settle("prompt", task.prompt);
  recipe.Settle("seed", fmt::format("{}", task.seed));
  recipe.Settle("output", task.output.string());
  recipe.Settle("save_latents", task.save_latents.string());
  return recipe;
}

std::vector<GenerateTask> MakeTasks(const Recipe& recipe, const RunOptions& options) {
  const bool is_random = !recipe.IsSettled("seed");
  const uint64_t seed = is_random ? RandomSeed() : static_cast<uint64_t>(recipe.Integer("seed"));
  std::vector<GenerateTask> tasks;
  for (const PromptLine& line : PromptsOf(recipe, options)) {
    CleanPrompt(line.prompt);                                       // throws where it is not UTF-8
    const uint64_t lines_seed = (seed + tasks.size()) & INT64_MAX;  // as large as a file may say
    GenerateTask& task = tasks.emplace_back();
    task.prompt = line.prompt;
    task.seed = line.seed.value_or(lines_seed);
    task.has_random_seed = is_random && !line.seed;
    if (options.files == VideoFiles::kNone) continue;
    NameFiles(recipe, options, options.prompts.empty() ? 0 : tasks.size(), task);
  }
  return tasks;
}

}  // namespace equitile
