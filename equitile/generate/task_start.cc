#include "equitile/generate/task_start.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "equitile/base/checked_value.h"
#include "equitile/base/error.h"
#include "equitile/io/frames/numbered_png.h"
#include "equitile/io/records/settings_file.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return !path.empty() && fs::exists(path, ignored);
}

// --resume only compares. What a run chooses of its own accord, a random seed and weights by free
// memory, is as it was stored.
class StartReader {
 public:
  StartReader(const GenerateRequest& request, const Recipe& recipe,
              const std::function<void(std::string_view)>& say)
      : request_(request), recipe_(recipe), say_(say) {}

  TaskStart Read(const GenerateTask& task) {
    const RunOptions& options = request_.options;
    const bool is_there = IsThere(task.checkpoint);
    if (!options.resumes) {
      if (is_there) Say(task.checkpoint, "left by an earlier run; --resume would go on from it");
      return {.seed = task.seed};
    }
    if (!options.resume.empty()) return FromCheckpoint(options.resume, task);
    if (is_there) return FromCheckpoint(task.checkpoint, task);
    TaskStart start{.record = FinishedRecord(task), .seed = task.seed};
    if (!start.record.is_null()) Say(task.Name(), "is there already");
    if (!start.record.is_null() || request_.tasks.size() > 1) return start;
    if (task.checkpoint.empty()) {
      throw InputError(
          "--resume: {} is not a file, so that no checkpoint lies beside it; give --resume FILE",
          task.Name().string());
    }
    throw InputError("--resume: there is no checkpoint {}; without --resume the video is begun",
                     task.checkpoint.string());
  }

 private:
  void Say(const fs::path& path, std::string_view what) const {
    say_(fmt::format("{}: {}", path.string(), what));
  }

  // Throws unless the run may go on with the target that it has here.
  void CheckTarget(const fs::path& path, std::string_view stored) const {
    const std::string_view here = ActiveTargetName();
    if (!request_.options.allows_other_target) {
      const std::optional<Target> same = TargetOf(stored);
      throw InputError(
          "{}: was begun with {}, here is {}; {} to the same bits, --allow-other-target to others",
          path.string(), stored, here,
          same ? fmt::format("EQUITILE_TARGET={} goes on", TargetName(*same))
               : "a machine that has it goes on");
    }
    Say(path, fmt::format("was begun with {} and goes on with {}: the bits are those of neither",
                          stored, here));
  }

  TaskStart FromCheckpoint(const fs::path& path, GenerateTask task) const {
    TaskStart start{.checkpoint = ReadRunCheckpoint(path)};
    recipe_.AddOlderDefaults(start.checkpoint->version, start.checkpoint->identity);
    const auto stored = [&](const char* name) {
      const auto found = start.checkpoint->identity.find(name);
      return found == start.checkpoint->identity.end() ? "" : found->second;
    };
    if (task.has_random_seed) {
      task.seed = static_cast<uint64_t>(ParseNumber("seed", stored("seed"), Bounds<int64_t>{}));
    }
    start.seed = task.seed;
    Recipe wanted = ForTask(recipe_, task);
    if (!wanted.IsSettled("weights")) wanted.Settle("weights", stored("weights"));
    if (const std::string target = stored("target"); target != wanted.Text("target")) {
      if (const std::string_view before = ParseArithmetic(target);
          before != wanted.Text("target")) {
        CheckTarget(path, before);
        start.target = before;
      }
      wanted.Settle("target", target);
    }
    CheckSameRun(path, *start.checkpoint, wanted.BitsIdentity());
    CheckFits(path, *start.checkpoint);
    return start;
  }

  void CheckFits(const fs::path& path, const RunCheckpoint& checkpoint) const {
    const GenerationConfig& config = request_.config;
    const Shape shape{request_.transformer.in_channels, config.LatentFrames(),
                      config.LatentHeight(), config.LatentWidth()};
    const int64_t done = checkpoint.state.sampler.step;
    const bool has_steps = checkpoint.steps.empty() || std::ssize(checkpoint.steps) == done;
    if (checkpoint.shape != shape || done > config.steps || !has_steps ||
        !Sampler::IsWhole(config.sampler, checkpoint.state.sampler,
                          checkpoint.state.latents.size())) {
      throw InputError("{}: does not fit together: step {} of {}, latents {}", path.string(), done,
                       config.steps, checkpoint.shape.ToString());
    }
  }

  // The sidecar of the task's video if that is there and was made as it would be made now, else
  // null.
  Json FinishedRecord(const GenerateTask& task) const {
    const int64_t last = request_.config.frames - 1;
    const fs::path video =
        IsNumberedPng(task.output) ? NumberedPng(task.output, last) : task.output;
    if (!IsThere(task.sidecar) || (!video.empty() && !IsThere(video)) ||
        (!task.save_latents.empty() && !IsThere(task.save_latents))) {
      return nullptr;
    }
    try {
      const std::string name = task.sidecar.string();
      Json record = ParseJson(ReadTextFile(task.sidecar), name);
      const JsonValue root(record, name);
      const JsonValue stored = root["parameters"];
      Recipe wanted = ForTask(recipe_, task);
      if (task.has_random_seed)  // as it was drawn then
        wanted.Settle("seed", fmt::format("{}", stored["seed"].Integer(0, INT64_MAX)));
      if (!wanted.IsSettled("weights")) wanted.Settle("weights", stored["weights"].Text());
      if (const std::string target = stored["target"].Text();
          request_.options.allows_other_target ||
          ParseArithmetic(target) == wanted.Text("target")) {
        wanted.Settle("target", target);
      }
      for (const char* key : {"layouts", "rates"}) {  // what the run itself found
        if (const auto found = stored.Find(key)) wanted.Settle(key, found->Text());
      }
      // The same model may be called by another path.
      wanted.Settle("model", stored["model"].Text());
      if (stored.json() == SettingsJson(wanted.Record())) return record;
    } catch (const InputError&) {  // not by us, or by another version
    }
    return nullptr;
  }

  const GenerateRequest& request_;
  const Recipe& recipe_;
  const std::function<void(std::string_view)>& say_;
};

}  // namespace

std::vector<TaskStart> ReadStarts(const GenerateRequest& request, const Recipe& recipe,
                                  const std::function<void(std::string_view)>& say) {
  if (request.tasks.size() > 1 && !request.options.resume.empty()) {
    throw InputError("--resume {}: with --prompts leave the file out", request.options.resume);
  }
  std::vector<TaskStart> starts;
  StartReader reader(request, recipe, say);
  for (const GenerateTask& task : request.tasks) starts.push_back(reader.Read(task));
  return starts;
}

}  // namespace equitile
