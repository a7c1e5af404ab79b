#include "equitile/model/sampling/sampler.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"

namespace equitile {

Sampler::Sampler(SamplerKind kind, int64_t steps, double shift)
    : kind_(kind), schedule_(MakeSchedule(kind, steps, shift)) {}

// Scalars in f32, as the library holds them.
float Sampler::Alpha(int64_t i) const { return 1.0f - Sigma(i); }
float Sampler::Lambda(int64_t i) const { return std::log(Alpha(i)) - std::log(Sigma(i)); }

bool Sampler::IsWhole(SamplerKind kind, const State& state, size_t latents) {
  const bool has_history = kind != SamplerKind::kEuler;
  const auto fits = [&](const std::vector<float>& part, bool is_needed) {
    return part.size() == latents || (part.empty() && !is_needed);
  };
  return state.step >= 0 && fits(state.estimate, has_history && state.step >= 1) &&
         fits(state.corrected, has_history && state.step >= 1) &&
         fits(state.older_estimate, has_history && state.step >= 2);
}

void Sampler::Step(std::span<const float> velocity, std::span<float> latents) {
  EQ_CHECK(!done() && velocity.size() == latents.size(), "step {} of {}, {} values for {}", step(),
           steps(), velocity.size(), latents.size());
  if (kind_ == SamplerKind::kEuler) {
    const float sigma = Sigma(step()), dt = Sigma(step() + 1) - sigma;
    state_.estimate.resize(latents.size());
    for (size_t i = 0; i < latents.size(); ++i) {
      state_.estimate[i] = latents[i] - sigma * velocity[i];
      latents[i] = latents[i] + dt * velocity[i];
    }
  } else {
    UniPcStep(velocity, latents);
  }
  ++state_.step;
}

// UniPC, bh2, order 2, as diffusers does it; the estimate is of the uncorrected sample.
void Sampler::UniPcStep(std::span<const float> velocity, std::span<float> latents) {
  std::vector<float> estimate(latents.size());
  const float sigma = Sigma(step());
  for (size_t i = 0; i < latents.size(); ++i) estimate[i] = latents[i] - sigma * velocity[i];
  if (step() == 0) {
    state_.corrected.assign(latents.begin(), latents.end());
  } else {
    Correct(estimate);
  }
  state_.older_estimate = std::move(state_.estimate);
  state_.estimate = std::move(estimate);
  Predict(latents);
}

// y_{i-1} -> y_i, from m_i (`estimate`), m_{i-1} and m_{i-2}. In the order of the last step's
// predictor: 1 after the first step, 2 afterwards (the last predictor is never corrected).
void Sampler::Correct(std::span<const float> estimate) {
  const int64_t i = step();
  const bool second_order = i >= 2;
  const float h = Lambda(i) - Lambda(i - 1);
  const float e = std::expm1(-h);
  const float ratio = Sigma(i) / Sigma(i - 1), scale = Alpha(i) * e;
  float rho1 = 0.0f, rho2 = 0.5f, r = 1.0f;
  if (second_order) {
    r = (Lambda(i - 2) - Lambda(i - 1)) / h;
    const float c1 = e / -h - 1, b1 = c1 / e;
    const float c2 = c1 / -h - 0.5f, b2 = 2 * c2 / e;
    rho1 = (b1 - b2) / (1 - r);
    rho2 = b1 - rho1;
  }
  const std::span<const float> m0 = state_.estimate, older = state_.older_estimate;
  for (size_t j = 0; j < estimate.size(); ++j) {
    const float base = ratio * state_.corrected[j] - scale * m0[j];
    const float history = second_order ? rho1 * ((older[j] - m0[j]) / r) : 0.0f;
    state_.corrected[j] = base - scale * (history + rho2 * (estimate[j] - m0[j]));
  }
}

// x_{i+1} from y_i, m_i and m_{i-1}.
void Sampler::Predict(std::span<float> latents) {
  const int64_t i = step();
  const bool second_order = i >= 1 && i + 1 < steps();
  const float h = Lambda(i + 1) - Lambda(i);
  const float e = std::expm1(-h);  // the last step: h infinite, e = -1
  const float ratio = Sigma(i + 1) / Sigma(i), scale = Alpha(i + 1) * e;
  const float r = second_order ? (Lambda(i - 1) - Lambda(i)) / h : 1.0f;
  const std::span<const float> m0 = state_.estimate, older = state_.older_estimate;
  for (size_t j = 0; j < latents.size(); ++j) {
    float x = ratio * state_.corrected[j] - scale * m0[j];
    if (second_order) x -= scale * (0.5f * ((older[j] - m0[j]) / r));
    latents[j] = x;
  }
}

}  // namespace equitile
