#include "equitile/model/sampling/generation_config.h"

#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/io/records/config_file.h"

namespace equitile {
namespace {

constexpr int64_t kSizeUnit = 16;      // 8 pixels a latent, 2 latents a patch
constexpr int64_t kMaxPixels = 16384;  // rope_max_seq_len of the released models, 1024 patches
constexpr int64_t kMaxFrames = 4093;   // the same for frames: 1024 latent frames

// Of `first`, first + unit, ... up to `max`.
std::string Nearest(int64_t value, int64_t unit, int64_t first, int64_t max) {
  if (value <= first) return fmt::format("{}", first);
  const int64_t below = (value - first) / unit * unit + first;
  if (below + unit > max) return fmt::format("{}", std::min(below, max));
  return fmt::format("{} or {}", below, below + unit);
}

void CheckPixels(const char* what, int64_t value) {
  if (value >= kSizeUnit && value <= kMaxPixels && value % kSizeUnit == 0) return;
  throw InputError("[model] {} {}: must be a multiple of {} up to {}; {} would work", what, value,
                   kSizeUnit, kMaxPixels, Nearest(value, kSizeUnit, kSizeUnit, kMaxPixels));
}

}  // namespace

GenerationConfig ReadGenerationConfig(const CheckpointFolder& folder) {
  GenerationConfig config;
  const SchedulerConfig scheduler =
      ReadSchedulerConfig(folder.Part("scheduler/scheduler_config.json"));
  config.sampler = scheduler.kind;
  config.flow_shift = scheduler.shift;
  const std::filesystem::path path = folder.root() / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return config;
  const ConfigFile file(path);
  config.width = file.Integer("width", config.width, 1);
  config.height = file.Integer("height", config.height, 1);
  config.frames = file.Integer("num_frames", config.frames, 1);
  config.fps = file.Integer("fps", config.fps, 1, 1000);
  config.steps = file.Integer("num_inference_steps", config.steps, 1, 1000);
  config.guidance = file.Number("guidance_scale", config.guidance, 0, 1000);
  config.flow_shift = file.Number("flow_shift", config.flow_shift, 1e-3, 1e3);
  config.text_rows = file.Integer("max_sequence_length", config.text_rows, 1, 1 << 16);
  config.negative_prompt = file.FindText("negative_prompt").value_or("");
  return config;
}

void CheckSizes(const GenerationConfig& config) {
  CheckPixels("width", config.width);
  CheckPixels("height", config.height);
  if (config.frames < 1 || config.frames > kMaxFrames || config.frames % 4 != 1) {
    throw InputError("[model] {} frames: must be 4 n + 1, from 1 to {}; {} would work",
                     config.frames, kMaxFrames, Nearest(config.frames, 4, 1, kMaxFrames));
  }
  MakeSchedule(config.sampler, config.steps, config.flow_shift);  // throws
}

int64_t RoundedFrames(int64_t frames) {
  return frames % 4 == 1 ? frames : std::max<int64_t>(frames, 0) / 4 * 4 + 1;
}

}  // namespace equitile
