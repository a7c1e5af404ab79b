// The part of a video's .json that says how to make it again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace equitile {

// Ranges of what a request may say, wherever it comes from.
inline constexpr int64_t kMaxSteps = 1000, kMaxFps = 1000;
inline constexpr double kMaxGuidance = 1000, kMinFlowShift = 1e-3, kMaxFlowShift = 1e3;

struct RecordedParameters {
  std::string prompt, negative_prompt;
  int64_t seed = 0;
  int64_t width = 0, height = 0, frames = 0, fps = 0,
          steps = 0;  // sizes: any that are not negative
  double guidance = 0, flow_shift = 0;
  std::string rng, sampler, tokenizer, attention, weights;
  int64_t text_rows = 0;
  bool vae_tiling = false;
  std::optional<std::string> planner, wire;  // where the bits depend on them
  int64_t ranks = 1;                         // with a planner
  bool reproducible = true;
  std::string output, save_latents, model;  // paths
  uint64_t model_fingerprint = 0;
  std::optional<uint64_t> mask_hash;  // unless attention is dense
};

// Throws InputError where something is missing, of another kind or out of range. Names of samplers
// and the like are only read.
RecordedParameters ParseSidecar(std::string_view text, std::string_view name);

}  // namespace equitile
