// From prompts to frames on the ranks of a communicator: the parts of a checkpoint in the order in
// which a video needs them. Each part is loaded when it is first needed; the text encoder, which is
// the largest, is gone before the transformer comes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/comm/node_copy.h"
#include "equitile/exec/executor.h"
#include "equitile/io/records/checkpoint_folder.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/text/tokenizer.h"
#include "equitile/model/vae/vae_decoder.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/sparsity/easy_cache.h"
#include "equitile/sparsity/layer_attention.h"
#include "equitile/sparsity/make_source.h"
#include "equitile/tensor/tensor.h"

namespace equitile {

// Weights in memory. Pipelines of the same folder and type of weights may have one of these
// together, also pipelines of different communicators in one process, as long as only one at a time
// is called that may be the first to need the transformer.
struct LoadedParts {
  NodeCopy transformer_bytes;
  std::optional<WanWeights> transformer;
  std::map<Compute, VaeWeights> vae;  // by arithmetic
  std::mutex vae_mutex;               // ranks that are threads may all need one
};

struct PipelineOptions {
  TokenizerKind tokenizer = TokenizerKind::kJson;
  WanWeightTypes weights;  // of the transformer's matrices in memory
  // Of attention to tokens and to the text; integers travel as they are, with f32 as the wire.
  Compute attention = Compute::kF32;
  Compute vae = Compute::kF32;   // of the convolutions behind a norm
  Compute text = Compute::kF32;  // of the text encoder
  SparsityOptions sparsity;
  std::string planner = "auto";
  PlanOptions plan;                    // cost and rates: of the machine
  std::optional<Machine> machine;      // rank 0's counts; nothing: measured where ranks have cores
  ReplanRule rule;                     // when layers whose masks change get new plans
  std::function<double()> plan_clock;  // see LayerAttention
  Trace* trace = nullptr;              // of what this rank does; null: none
  bool tiles_vae = false;  // frames decoded in blended tiles: less memory, another picture
  DType wire = DType::kF32;
  std::shared_ptr<LoadedParts> parts;  // null: its own
  // Rank 0: parts as they are loaded, "transformer" with bytes done of all.
  std::function<void(std::string_view part, int64_t done, int64_t total)> on_load;
  // Given on all ranks or on none, asked now and then: true on any of them, and from then on, ends
  // the call under way early on all of them.
  std::function<bool()> stop_requested;
};

// Throws InputError where the checkpoint's VAE does not decode what its transformer makes.
void CheckVaeFits(const CheckpointFolder& folder, const VaeConfig& vae, const WanConfig& model);

// Embeddings of one prompt: [rows, text_dim], f32, without the zeros that follow. The same on every
// rank.
using PromptRows = Tensor;

// What a denoising run needs besides its config.
struct DenoiseHooks {
  std::function<void(const DenoiseStep& step)> after_step;  // rank 0
  const DenoiseState* resume = nullptr;                     // rank 0
  const SourceState* resume_sparsity = nullptr;             // rank 0, with `resume`
  const PlanDecisions* repeats = nullptr;  // see Balancer::Begin; the same on every rank
  WatchOptions watch = {};                 // of self-attention; all ranks
};

// One per rank; every call is collective. One video at a time.
class Pipeline {
 public:
  // comm and pool must outlive it.
  Pipeline(const CheckpointFolder& folder, Communicator& comm, ThreadPool& pool,
           PipelineOptions options);
  ~Pipeline();

  // Cleaned, tokenised and encoded on rank 0, once for all of them. Empty: stopped.
  std::vector<PromptRows> Encode(std::span<const std::string> prompts, int64_t text_rows);

  // The transformer; Denoise calls it where nobody has. False: stopped.
  bool Load();

  // `negative` is not looked at where the config asks for one pass.
  DenoiseResult Denoise(const GenerationConfig& config, const PromptRows& prompt,
                        const PromptRows& negative, const DenoiseHooks& hooks);

  // Frames of latents [channels, frames, height, width], the same on every rank; to the sink of
  // rank 0. False: stopped, between two latent frames.
  bool Decode(const GenerationConfig& config, std::span<const float> latents, VaeFrameSink sink);

  // Not collective: some latent frames side by side, each decoded with the few before it; rgb
  // [height][frames * width][3] in [-1, 1]. Enough to see what is coming.
  std::vector<float> Preview(const GenerationConfig& config, std::span<const float> latents,
                             int64_t frames);

  // What masks, skipped steps and plans need to go on with, between two steps; rank 0's.
  SourceState SparsityState() const;
  // With which the last video's plans were made; nothing where bits do not depend on plans, and
  // where nobody asked for rates.
  const std::optional<Machine>& Rates() const { return rates_; }

  // How self-attention went in the last video; null before the first.
  const LayerAttention* SelfAttentionRuns() const { return attention_.get(); }
  const WanConfig& transformer_config() const { return config_; }

  // The parts themselves, loaded where nobody has: for those who look inside.
  WanTransformer& Transformer();
  Executor& Attention();
  const VaeWeights& Vae();

 private:
  bool IsAsked() const { return options_.stop_requested && options_.stop_requested(); }
  bool AnyoneIsAsked();  // collective
  bool LoadTransformer();
  std::vector<PromptRows> EncodeHere(std::span<const std::string> prompts, int64_t text_rows);
  Shape LatentShape(const GenerationConfig& config) const;
  void PrepareAttention(const GenerationConfig& config, const DenoiseHooks& hooks,
                        const SourceState& resume);
  bool BitsDependOnPlans(int64_t passes) const;
  bool CanMeasure();
  void PlanForMachine(const BlockGrid& grid, const SourceState& resume, PlanOptions& plan);

  CheckpointFolder folder_;
  Communicator& comm_;
  ThreadPool& pool_;
  PipelineOptions options_;
  WanConfig config_;
  std::shared_ptr<LoadedParts> parts_;
  std::unique_ptr<WanTransformer> transformer_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<LayerAttention> attention_;
  int64_t attention_tokens_ = 0, attention_passes_ = 0;  // that attention_ is made for
  std::optional<Machine> rates_;
  std::unique_ptr<EasyCache> cache_;  // of the video, where steps are skipped
};

}  // namespace equitile
