// What a video is made with: sizes, steps, guidance. A checkpoint's generation_config.json gives
// defaults that fit it; without one they are Wan's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "equitile/io/records/checkpoint_folder.h"
#include "equitile/model/sampling/noise.h"
#include "equitile/model/sampling/schedule.h"
#include "equitile/pattern/token_order.h"

namespace equitile {

struct GenerationConfig {
  int64_t width = 832, height = 480;  // pixels, multiples of 16
  int64_t frames = 81;                // 4 n + 1
  int64_t fps = 16;
  int64_t steps = 50;
  double guidance = 5.0;  // at most 1: one pass a step, no negative prompt
  double flow_shift = 3.0;
  int64_t text_rows = 512;
  std::string negative_prompt;
  SamplerKind sampler = SamplerKind::kUniPc;
  NoiseKind rng = NoiseKind::kTorch;
  TokenOrder token_order = {};  // in which the transformer keeps the video's tokens
  uint64_t seed = 0;

  int64_t LatentFrames() const { return (frames - 1) / 4 + 1; }
  int64_t LatentHeight() const { return height / 8; }
  int64_t LatentWidth() const { return width / 8; }
  int64_t Passes() const { return guidance > 1.0 ? 2 : 1; }
};

// The defaults of a checkpoint: generation_config.json, then scheduler_config.json, then Wan's.
GenerationConfig ReadGenerationConfig(const CheckpointFolder& folder);

// Throws InputError, naming the nearest sizes that work, for what the model cannot make, and for
// schedules that MakeSchedule refuses.
void CheckSizes(const GenerationConfig& config);

// As diffusers does with a count that is not 4 n + 1: 7 gives 5, 8 gives 9.
int64_t RoundedFrames(int64_t frames);

}  // namespace equitile
