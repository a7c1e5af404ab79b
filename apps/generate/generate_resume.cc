#include "apps/generate/generate_resume.h"

#include <fmt/format.h>

#include <cstdio>

#include "apps/generate/sidecar.h"
#include "apps/generate/video_maker.h"
#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/numbered_png.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return !path.empty() && fs::exists(path, ignored);
}

RunCheckpoint ReadCheckpoint(const fs::path& path, const GenerateRequest& request,
                             const GenerateTask& task) {
  RunCheckpoint checkpoint = ReadRunCheckpoint(path);
  const auto stored = checkpoint.parameters.find("weights");
  const DType weights = request.weights                         ? *request.weights
                        : stored != checkpoint.parameters.end() ? ParseDType(stored->second)
                                                                : DType::kF32;
  CheckSameRun(path, checkpoint, request.Parameters(task, weights));
  const Shape shape{request.transformer.in_channels, request.config.LatentFrames(),
                    request.config.LatentHeight(), request.config.LatentWidth()};
  if (checkpoint.shape != shape || checkpoint.state.sampler.step > request.config.steps ||
      !Sampler::IsWhole(request.config.sampler, checkpoint.state.sampler,
                        checkpoint.state.latents.size())) {
    throw InputError("{}: does not fit together: step {} of {}, latents {}", path.string(),
                     checkpoint.state.sampler.step, request.config.steps,
                     checkpoint.shape.ToString());
  }
  return checkpoint;
}

// The sidecar of the task's video if that is there and was made as it would be made now, else null.
Json FinishedRecord(const GenerateRequest& request, const GenerateTask& task) {
  const int64_t last = request.config.frames - 1;
  const fs::path video = IsNumberedPng(task.output) ? NumberedPng(task.output, last) : task.output;
  if (!IsThere(task.sidecar) || (!video.empty() && !IsThere(video)) ||
      (!task.save_latents.empty() && !IsThere(task.save_latents))) {
    return nullptr;
  }
  try {
    const std::string name = task.sidecar.string();
    Json record = ParseJson(ReadTextFile(task.sidecar), name);
    const JsonValue root(record, name);
    const JsonValue stored = root["parameters"];
    Json wanted = SidecarParameters(request, task,
                                    request.weights.value_or(ParseDType(stored["weights"].Text())));
    // The same model may be called by another path.
    wanted["model"] = stored["model"].Text();
    if (record["parameters"] == wanted) return record;
  } catch (const InputError&) {  // not by us, or by another version
  }
  return nullptr;
}

}  // namespace

std::vector<TaskStart> ReadStarts(const GenerateRequest& request) {
  std::vector<TaskStart> starts(request.tasks.size());
  const GenerateFlags& flags = request.flags;
  const bool several = starts.size() > 1;
  if (several && !flags.resume.empty()) {
    throw InputError("--resume {}: with --prompts leave the file out", flags.resume);
  }
  const auto say = [](const fs::path& path, const char* what) {
    if (IsFirstProcess()) fmt::print(stderr, "equitile: {}: {}\n", path.string(), what);
  };
  for (size_t i = 0; i < starts.size(); ++i) {
    const GenerateTask& task = request.tasks[i];
    const bool is_there = IsThere(task.checkpoint);
    if (!flags.resumes) {
      if (is_there) say(task.checkpoint, "left by an earlier run; --resume would go on from it");
    } else if (!flags.resume.empty()) {
      starts[i].checkpoint = ReadCheckpoint(flags.resume, request, task);
    } else if (is_there) {
      starts[i].checkpoint = ReadCheckpoint(task.checkpoint, request, task);
    } else if (several) {
      starts[i].record = FinishedRecord(request, task);
      if (!starts[i].record.is_null()) say(task.Name(), "is there already");
    } else if (task.checkpoint.empty()) {
      throw InputError(
          "--resume: {} is not a file, so that no checkpoint lies beside it; give --resume FILE",
          task.Name().string());
    } else {
      throw InputError("--resume: there is no checkpoint {}", task.checkpoint.string());
    }
  }
  return starts;
}

DType WeightsOf(const GenerateRequest& request, const std::vector<TaskStart>& starts) {
  for (const TaskStart& start : starts) {
    if (start.checkpoint && !request.weights) {
      return ParseDType(start.checkpoint->parameters.at("weights"));
    }
  }
  return ChooseWeights(request);
}

}  // namespace equitile
