// How much noise each step starts from: the part of a sampler that depends on nothing but its kind,
// the number of steps and the shift.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace equitile {

enum class SamplerKind : uint8_t {
  kUniPc,   // UniPC of order 2 with the sigmas of diffusers 0.37 and later
  kUniPcB,  // the same with the sigmas of diffusers 0.33 to 0.36 and of the original Wan
  kEuler,   // flow-match Euler
};

std::string_view SamplerKindName(SamplerKind kind);   // "unipc", "unipc-b", "euler"
SamplerKind ParseSamplerKind(std::string_view name);  // throws InputError

struct Schedule {
  std::vector<float> sigmas;     // [steps + 1], falling, the last one 0
  std::vector<float> timesteps;  // [steps], what the model is given; whole numbers for UniPC
};

// Bit for bit what diffusers computes. steps >= 1, shift > 0. Throws InputError where sigmas do not
// fall in every step: neighbours that are equal as f32 leave a sampler nothing to divide by.
Schedule MakeSchedule(SamplerKind kind, int64_t steps, double shift);

// scheduler_config.json: which sampler, and its shift. Throws InputError where a switch is set that
// our samplers do not have.
struct SchedulerConfig {
  SamplerKind kind = SamplerKind::kUniPc;
  double shift = 3.0;
};
SchedulerConfig ReadSchedulerConfig(const std::filesystem::path& path);

}  // namespace equitile
