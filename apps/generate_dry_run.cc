#include "apps/generate_dry_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/plan_run.h"
#include "apps/table.h"
#include "equitile/io/safetensors.h"
#include "equitile/kernel/fma_peak.h"
#include "equitile/model/denoise.h"
#include "equitile/model/vae_decoder.h"
#include "equitile/model/wan_weights.h"

namespace equitile {
namespace {

// Of the multiply-add peak, as whole steps of wan-mini and of the 1.3B shape reach it here.
constexpr double kFractionOfPeak = 0.65;

struct Bytes {
  int64_t weights = 0, activations = 0, attention = 0, latents = 0, vae = 0;
  // Frames are decoded when the passes are over, beside their buffers.
  int64_t Total() const { return weights + activations + attention + latents + vae; }
};

BlockMask MaskOfLayer(const GenerateRequest& request) {
  if (request.mask) return request.mask->layers.front();
  const int64_t tokens = VideoTokens(request.transformer, request.config);
  return BlockMask::Dense({.batch = request.config.Passes(), .heads = request.transformer.heads},
                          {.q_tokens = tokens, .kv_tokens = tokens});
}

PlanReport LayoutOf(const GenerateRequest& request, const BlockMask& mask, int32_t ranks) {
  PlanOptions options;
  options.ranks = ranks;
  options.reproducible = request.flags.reproducible;
  options.cluster.wire.head_dim = request.transformer.head_dim;
  if (request.mask) {
    options.orders = request.mask->orders;
    if (request.mask->grid) options.token_grid = *request.mask->grid;
  }
  return ReportPlanners({ParsePlanner(request.flags.planner, ranks)}, mask, options).front();
}

// Frames that the decoder holds: two before each causal convolution, and new ones on their way.
int64_t DecoderBytes(const VaeConfig& vae, const GenerationConfig& config) {
  int64_t floats = 0, scale = 1;
  for (const VaeUpBlockShape& block : vae.UpBlocks()) {
    const int64_t frames = 4 * (vae.res_blocks + 1) + 3 * vae.TemporalScale();
    floats += frames * std::max(block.in, block.out) * scale * scale * config.LatentHeight() *
              config.LatentWidth();
    if (block.upsample) scale *= 2;
  }
  return floats * int64_t{sizeof(float)};
}

Bytes CountBytes(const GenerateRequest& request, const PlanReport& layout, int32_t ranks) {
  const WanConfig& model = request.transformer;
  const GenerationConfig& config = request.config;
  constexpr int64_t kFloat = sizeof(float);
  int64_t home = 0;
  const int64_t tokens = VideoTokens(model, config);
  for (const Range& range : HomeTokens(config.Passes(), model.heads, tokens, 0, ranks)) {
    home += range.size();
  }
  const int64_t elements =
      model.in_channels * config.LatentFrames() * config.LatentHeight() * config.LatentWidth();
  const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
  Bytes bytes;
  bytes.weights = WanWeights::Bytes(model, request.weights.value_or(DType::kF32));
  bytes.activations = home * (5 * model.Width() + model.OutFeatures()) * kFloat;
  bytes.attention = layout.buffer_bytes_max;
  bytes.latents = (4 + 2 * config.Passes()) * elements * kFloat;  // sampler history, velocities
  if (!request.tasks.front().output.empty()) {
    // Each rank has some rows of every frame.
    bytes.vae = TensorFiles::OpenFolder(request.folder.Part("vae")).Bytes() +
                DecoderBytes(vae, config) / ranks;
  }
  return bytes;
}

// Of all denoising steps; decoding comes on top.
double EstimateSeconds(const GenerateRequest& request, double density, double rho, int32_t ranks,
                       int threads) {
  const WanFlops flops =
      CountWanFlops(request.transformer, VideoTokens(request.transformer, request.config),
                    request.config.text_rows);
  const double pass = flops.linear + flops.cross_attention + flops.self_attention * density * rho;
  const double all = pass * static_cast<double>(request.config.Passes() * request.config.steps);
  ThreadPool pool(threads);
  double peak = 0.0;
  for (int window = 0; window < 5; ++window) peak = std::max(peak, FmaPeakWindow(pool));
  return all / (peak * 1e9 * kFractionOfPeak * ranks);
}

std::string Text(int64_t bytes) {
  return bytes < 10'000'000      ? fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6)
         : bytes < 1'000'000'000 ? fmt::format("{:.0f} MB", static_cast<double>(bytes) * 1e-6)
                                 : fmt::format("{:.1f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace

void PrintDryRun(const GenerateRequest& request) {
  const auto ranks = static_cast<int32_t>(request.flags.ranks.ranks.value_or(1));
  const int threads = ThreadsPerRank(request.flags.ranks, ranks);
  const GenerationConfig& config = request.config;
  const BlockMask mask = MaskOfLayer(request);
  const PlanReport layout = LayoutOf(request, mask, ranks);
  const std::string planner = layout.chosen.empty() ? layout.planner : layout.chosen;
  const Bytes bytes = CountBytes(request, layout, ranks);
  const double seconds = EstimateSeconds(request, mask.Density(), layout.rho, ranks, threads);
  const int64_t tokens = VideoTokens(request.transformer, config);
  if (request.flags.json) {
    PrintJson({{"tokens", tokens},
               {"steps", config.steps},
               {"passes", config.Passes()},
               {"ranks", ranks},
               {"threads_per_rank", threads},
               {"layout", planner},
               {"rho", layout.rho},
               {"density", mask.Density()},
               {"bytes_per_rank",
                {{"weights_per_node", bytes.weights},
                 {"activations", bytes.activations},
                 {"attention", bytes.attention},
                 {"latents", bytes.latents},
                 {"vae", bytes.vae},
                 {"total", bytes.Total()}}},
               {"seconds", seconds}});
    return;
  }
  fmt::print("video            {} frames of {}x{}: {} tokens, {} passes of {} steps\n",
             config.frames, config.width, config.height, tokens, config.Passes(), config.steps);
  fmt::print(
      "memory per rank  {}: weights {} (one copy per node), activations {}, attention {}, "
      "latents {}, VAE {}\n",
      Text(bytes.Total()), Text(bytes.weights), Text(bytes.activations), Text(bytes.attention),
      Text(bytes.latents), Text(bytes.vae));
  fmt::print("layout           {} on {} ranks of {} threads, ρ {:.3f}, density {:.3f}\n", planner,
             ranks, threads, layout.rho, mask.Density());
  fmt::print(
      "time             about {:.0f} s for the steps, at {} of the multiply-add peak of {} "
      "threads\n",
      seconds, kFractionOfPeak, ranks * threads);
}

}  // namespace equitile
