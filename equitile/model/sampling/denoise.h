// The denoising loop over ranks. The transformer runs where tokens are at home; latents, guidance
// and sampler live on rank 0 only, which hands the next latents to everybody: one place decides,
// so that ranks on unlike machines cannot drift apart.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/sampling/sampler.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/tensor/tensor.h"

namespace equitile {

// Between two steps; all that it takes to go on.
struct DenoiseState {
  Sampler::State sampler;
  std::vector<float> latents;  // [videos, channels, frames, height, width]
};

// Decides, for all passes together, in which steps the transformer need not run, and what stands in
// for it there. All its calls are on rank 0, which tells the others.
class StepCache {
 public:
  virtual ~StepCache() = default;
  // Before step `step` of `steps`, counted from 0: true: no pass is computed.
  virtual bool Skips(int64_t step, int64_t steps, std::span<const float> latents) = 0;
  // After Skips gave true: the velocities of the passes, as far as they can be told.
  virtual void FillIn(std::span<const float> latents, std::span<Tensor> passes) = 0;
  // After a step that was computed from `latents`.
  virtual void Computed(int64_t step, std::span<const float> latents,
                        std::span<const Tensor> passes) = 0;
};

// What rank 0 shows after each step. Views, valid during the call.
struct DenoiseStep {
  int64_t done = 0, steps = 0;
  double seconds = 0.0;  // of this step
  const Sampler* sampler = nullptr;
  std::span<const float> latents;
  std::span<const float> velocity;  // after guidance, as given to the sampler
  std::span<const Tensor> passes;   // [videos][passes], before guidance: the prompt's, then the
                                    // negative prompt's
  WanTimes times;                   // of this step, on rank 0
  bool skipped = false;             // the passes were not computed
  bool stopping = false;            // a rank was asked to stop: no step follows
};

struct DenoiseJob {
  GenerationConfig config;
  // Several videos in lock-step, a seed each; empty: one, with the config's. Their latents lie one
  // after the other wherever latents are; a batch item of attention is a pass of a video, the
  // passes of the first video first. Each gets the bits that it would get alone.
  std::span<const uint64_t> seeds = {};
  std::span<const WanText* const> texts;  // [videos][passes]: the prompt, then the negative prompt
  SelfAttention attention;
  SkippedHeadsOf skipped_heads = {};  // empty: none are
  StepCache* cache = nullptr;  // rank 0; given on all ranks or on none. null: no step is skipped
  // Any rank: true asks all to stop after the step that is under way.
  FunctionRef<bool()> stop_requested;
  // Rank 0, after each step.
  FunctionRef<void(const DenoiseStep& step)> after_step;
  // Rank 0, instead of noise: where to go on.
  const DenoiseState* resume = nullptr;
  ModelSpanSink on_span = {};  // empty: nobody asks
};

struct DenoiseResult {
  std::vector<float> latents;  // [videos, channels, frames, height, width], on every rank
  bool finished = false;       // false: stopped
};

// The tokens of each batch item that are at home on `rank`.
std::vector<Range> HomeTokens(int64_t items, int64_t heads, int64_t tokens, int32_t rank,
                              int32_t ranks);

// Tokens of one batch item, and how they lie.
TokenGrid VideoGrid(const WanConfig& model, const GenerationConfig& config);
int64_t VideoTokens(const WanConfig& model, const GenerationConfig& config);

// Collective; all ranks give the same config and texts. Throws Error where latents stop being
// finite.
DenoiseResult Denoise(WanTransformer& transformer, Communicator& comm, const DenoiseJob& job);

}  // namespace equitile
