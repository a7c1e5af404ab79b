// From noise to latents, one model call a step: UniPC of order 2 (Zhao et al. 2023, with bh2 and
// the x0 prediction, as Wan's checkpoints ask for) and flow-match Euler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/model/sampling/schedule.h"

namespace equitile {

class Sampler {
 public:
  // All that a run needs to go on with the same bits, besides the latents.
  struct State {
    int64_t step = 0;                   // steps done
    std::vector<float> corrected;       // y_{i-1}; empty before the first step and for Euler
    std::vector<float> estimate;        // m_{i-1}, the x0 estimate; empty before the first step
    std::vector<float> older_estimate;  // m_{i-2}
  };

  Sampler(SamplerKind kind, int64_t steps, double shift);

  const Schedule& schedule() const { return schedule_; }
  int64_t steps() const { return static_cast<int64_t>(schedule_.timesteps.size()); }
  int64_t step() const { return state_.step; }
  bool done() const { return step() == steps(); }

  // One step: `latents` from x_i to x_{i+1}, given the model's velocity at x_i. The sizes are the
  // same in every step.
  void Step(std::span<const float> velocity, std::span<float> latents);

  // The x0 estimate of the last step; empty before.
  std::span<const float> Estimate() const { return state_.estimate; }
  // The sample that the last step started from, corrected by its own estimate; UniPC only.
  std::span<const float> Corrected() const { return state_.corrected; }

  const State& state() const { return state_; }
  // Whether a state has the history that its step needs, for so many latents.
  static bool IsWhole(SamplerKind kind, const State& state, size_t latents);
  void Restore(State state) { state_ = std::move(state); }

 private:
  void UniPcStep(std::span<const float> velocity, std::span<float> latents);
  void Correct(std::span<const float> estimate);
  void Predict(std::span<float> latents);
  float Alpha(int64_t i) const;
  float Lambda(int64_t i) const;
  float Sigma(int64_t i) const { return schedule_.sigmas[static_cast<size_t>(i)]; }

  SamplerKind kind_;
  Schedule schedule_;
  State state_;
};

}  // namespace equitile
