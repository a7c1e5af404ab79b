// Whole steps that are not computed: while little changes, the velocity of a step is the latents
// plus what the last computed step has added to them. The rule of EasyCache (arXiv 2507.02860): the
// change of the output is foretold from the change of the input and the rate between the two that
// was seen last; what has been foretold since the last computed step must stay below a bound.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/model/sampling/denoise.h"
#include "equitile/sparsity/source/mask_source.h"

namespace equitile {

struct EasyCacheOptions {
  static constexpr int64_t kLeastFirstSteps = 3;  // a rate needs two

  double bound = 0.05;                     // of the accumulated relative change
  int64_t first_steps = kLeastFirstSteps;  // always computed, as the last one is
};

// Lives on rank 0. Both guidance passes are skipped together: one rate for all of them.
class EasyCache final : public StepCache {
 public:
  explicit EasyCache(EasyCacheOptions options);

  bool Skips(int64_t step, int64_t steps, std::span<const float> latents) override;
  void FillIn(std::span<const float> latents, std::span<Tensor> passes) override;
  void Computed(int64_t step, std::span<const float> latents,
                std::span<const Tensor> passes) override;

  SourceState State() const;
  void Restore(const SourceState& state);  // throws InputError where it is another run's

 private:
  EasyCacheOptions options_;
  std::vector<float> last_latents_;             // of the step before, computed or not
  std::vector<float> computed_latents_;         // of the last computed step
  std::vector<std::vector<float>> difference_;  // [passes] velocity - latents, of that step
  double rate_ = -1;                            // change of output per change of input; -1: unknown
  double output_size_ = 0;                      // mean |velocity| of the last computed step
  double accumulated_ = 0;
};

}  // namespace equitile
