// Passes of a Wan transformer behind C functions, for diffusers_step.py.
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "bench/peers/peers.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/exec/executor.h"
#include "equitile/kernel/target.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/sparsity/layer_attention.h"

namespace {

using namespace equitile;

struct Model {
  Model(int threads, const std::filesystem::path& folder, WeightType type)
      : pool(threads),
        executor(comm, pool),
        config(ReadWanConfig(folder / "config.json")),
        compute(ComputeOf(type)),
        bytes(WanWeights::Bytes(config, type)) {
    WanWeights::Pack(TensorFiles::OpenFolder(folder), config, type, bytes.span(), pool);
    weights = WanWeights(config, type, bytes.span());
    transformer.emplace(config, weights, pool, compute);
  }

  ThreadPool pool;
  SoloCommunicator comm;
  Executor executor;
  WanConfig config;
  Compute compute;  // of attention, to the text too
  AlignedBuffer<std::byte> bytes;
  WanWeights weights;
  std::optional<WanTransformer> transformer;
  std::vector<WanText> texts;
  std::optional<LayerAttention> attention;  // as `generate` runs it
  int64_t attention_tokens = 0;
  AlignedBuffer<float> rows;
};

}  // namespace

extern "C" {

// folder: transformer/ of a checkpoint; weights: a WeightType, attention is computed in integers of
// their kind. Null on failure.
void* equitile_wan_new(int threads, const char* folder, const char* weights) {
  std::unique_ptr<Model> model;
  Succeeds([&] {
    ApplyTargetFromEnvironment();
    model = std::make_unique<Model>(threads, folder, ParseWeightType(weights));
  });
  return model.release();
}

// Adds a prompt, [rows][text_dim] and zeros up to text_tokens: the next batch item. 0 on failure.
int equitile_wan_add_text(void* handle, const float* text, int64_t rows, int64_t text_tokens) {
  return Succeeds([&] {
    Model& model = *static_cast<Model*>(handle);
    const ConstView view(text, {rows, model.config.text_dim});
    model.texts.push_back(model.transformer->Text(view, text_tokens));
  });
}

// latent: [channels][frames][height][width], the same for all items; velocity: [items] of these. 0
// on failure.
int equitile_wan_run(void* handle, const float* latent, int64_t frames, int64_t height,
                     int64_t width, float timestep, float* velocity) {
  return Succeeds([&] {
    Model& model = *static_cast<Model*>(handle);
    const WanConfig& config = model.config;
    const auto items = static_cast<int64_t>(model.texts.size());
    const ConstView view(latent, {config.in_channels, frames, height, width});
    const int64_t tokens = PatchGrid(view, config.patch).VideoTokens();
    if (model.attention_tokens != tokens) {
      model.attention.emplace(
          model.executor,
          std::make_unique<ConstantMasks>(BlockMask::Dense(
              {.batch = items, .heads = config.heads}, {.q_tokens = tokens, .kv_tokens = tokens})),
          LayerAttention::Options{
              .head_dim = config.head_dim, .layers = config.layers, .compute = model.compute});
      model.rows = AlignedBuffer<float>(items * tokens * config.OutFeatures());
      model.attention_tokens = tokens;
    }
    const std::vector<ConstView> latents(static_cast<size_t>(items), view);
    const std::vector<Range> home(static_cast<size_t>(items), Range{0, tokens});
    std::vector<const WanText*> texts;
    for (const WanText& text : model.texts) texts.push_back(&text);
    WanPass pass;
    pass.timestep = timestep;
    pass.latents = latents;
    pass.texts = texts;
    pass.home = home;
    pass.attention = SelfAttention(*model.attention);
    model.transformer->Forward(pass, model.rows.data());
    for (int64_t item = 0; item < items; ++item) {
      const View to(velocity, {items, config.out_channels, frames, height, width});
      ScatterPatches(model.rows.data() + item * tokens * config.OutFeatures(), config.patch, 0,
                     tokens, to.Select(0, item));
    }
  });
}

void equitile_wan_delete(void* handle) { delete static_cast<Model*>(handle); }

}  // extern "C"
