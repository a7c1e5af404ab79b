#include "apps/generate_dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/plan_run.h"
#include "apps/table.h"
#include "equitile/kernel/fma_peak.h"
#include "equitile/model/denoise.h"
#include "equitile/model/vae_memory.h"
#include "equitile/model/wan_weights.h"

namespace equitile {
namespace {

// Of the multiply-add peak, as wan-mini reaches it here: steps as a whole, and the decoder counted
// as direct convolutions, which it is not where a transformed algorithm needs fewer
// multiplications.
constexpr double kStepsOfPeak = 0.65;
constexpr double kDecoderOfPeak = 0.68;

// The program with its libraries, before anything is loaded.
constexpr int64_t kProgramBytes = 40'000'000;

struct Bytes {
  int64_t weights = 0, activations = 0, attention = 0, latents = 0, vae = 0;
  // Frames are decoded when the passes are over, beside their buffers.
  int64_t Total() const {
    return kProgramBytes + weights + activations + attention + latents + vae;
  }
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
  return ReportPlanners({ParsePlanner(request.planner, ranks)}, mask, options).front();
}

// One level of the decoder, as each rank has it.
struct DecoderLevel {
  VaeUpBlockShape shape;
  int64_t height = 0, width = 0;
  int64_t frames = 0;  // of the whole clip
};

std::vector<DecoderLevel> DecoderLevels(const VaeConfig& vae, const GenerationConfig& config,
                                        int32_t ranks) {
  std::vector<DecoderLevel> levels;
  int64_t frames = config.LatentFrames(), scale = 1;
  for (const VaeUpBlockShape& shape : vae.UpBlocks()) {
    // What lies at the resolution of the latents is computed by everyone.
    const int64_t rows =
        levels.empty() ? config.LatentHeight() : (config.LatentHeight() + ranks - 1) / ranks;
    levels.push_back({shape, rows * scale, config.LatentWidth() * scale, frames});
    if (shape.upsample_time) frames = 2 * frames - 1;
    if (shape.upsample) scale *= 2;
  }
  return levels;
}

// Of this rank's rows, as direct convolutions.
double DecoderFlops(const VaeConfig& vae, const std::vector<DecoderLevel>& levels) {
  double flops = 0.0;
  for (const DecoderLevel& level : levels) {
    const auto in = static_cast<double>(level.shape.in), out = static_cast<double>(level.shape.out);
    const auto pixels = static_cast<double>(level.frames * level.height * level.width);
    double per_pixel =
        27.0 * out * (in + out) + 27.0 * 2.0 * out * out * static_cast<double>(vae.res_blocks);
    if (&level == &levels.front()) per_pixel += 27.0 * 4.0 * in * in;  // the middle
    if (level.shape.upsample_time) per_pixel += 3.0 * 2.0 * out * out;
    // Nine taps to half the channels, on four times the pixels.
    if (level.shape.upsample) per_pixel += 4.0 * 9.0 * out * out / 2.0;
    flops += 2.0 * per_pixel * pixels;
  }
  return flops;
}

Bytes CountBytes(const GenerateRequest& request, const PlanReport& layout, int32_t ranks,
                 int threads) {
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
  Bytes bytes;
  bytes.weights = WanWeights::Bytes(model, request.weights.value_or(DType::kF32));
  bytes.activations = home * (5 * model.Width() + model.OutFeatures()) * kFloat;
  bytes.attention = layout.buffer_bytes_max;
  bytes.latents = (4 + 2 * config.Passes()) * elements * kFloat;  // sampler history, velocities
  if (!request.tasks.front().output.empty()) {
    VaeClipShape clip{config.LatentFrames(), config.LatentHeight(), config.LatentWidth(), {}};
    if (request.flags.vae_tiling) clip.tiling = VaeTiling{};
    const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
    bytes.vae = PredictVaeMemory(vae, clip, ranks, threads).Total();
  }
  return bytes;
}

struct Seconds {
  double steps = 0.0, decode = 0.0;  // of all videos
};

Seconds EstimateSeconds(const GenerateRequest& request, double density, double rho, int32_t ranks,
                        int threads) {
  const WanFlops flops =
      CountWanFlops(request.transformer, VideoTokens(request.transformer, request.config),
                    request.config.text_rows);
  const double pass = flops.linear + flops.cross_attention + flops.self_attention * density * rho;
  const double all = pass * static_cast<double>(request.config.Passes() * request.config.steps);
  ThreadPool pool(threads);
  double peak = 0.0;
  for (int window = 0; window < 5; ++window) peak = std::max(peak, FmaPeakWindow(pool));
  const auto videos = static_cast<double>(request.tasks.size());
  Seconds seconds{.steps = videos * all / (peak * 1e9 * kStepsOfPeak * ranks)};
  if (!request.tasks.front().output.empty()) {
    const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
    const double decode = DecoderFlops(vae, DecoderLevels(vae, request.config, ranks));
    seconds.decode = videos * decode / (peak * 1e9 * kDecoderOfPeak);
  }
  return seconds;
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
  const Bytes bytes = CountBytes(request, layout, ranks, threads);
  const Seconds seconds = EstimateSeconds(request, mask.Density(), layout.rho, ranks, threads);
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
                {{"program", kProgramBytes},
                 {"weights_per_node", bytes.weights},
                 {"activations", bytes.activations},
                 {"attention", bytes.attention},
                 {"latents", bytes.latents},
                 {"vae", bytes.vae},
                 {"total", bytes.Total()}}},
               {"videos", request.tasks.size()},
               {"seconds_steps", seconds.steps},
               {"seconds_decode", seconds.decode},
               {"seconds", seconds.steps + seconds.decode}});
    return;
  }
  fmt::print("video            {}{} of {}x{}: {} tokens, {} of {}\n",
             request.tasks.size() > 1 ? fmt::format("{} times ", request.tasks.size()) : "",
             Counted(config.frames, "frame"), config.width, config.height, tokens,
             (config.Passes() == 1 ? "1 pass" : "2 passes"), Counted(config.steps, "step"));
  fmt::print(
      "memory per rank  {}: program {}, weights {} (one copy per node), activations {}, attention "
      "{}, latents {}, VAE {}\n",
      Text(bytes.Total()), Text(kProgramBytes), Text(bytes.weights), Text(bytes.activations),
      Text(bytes.attention), Text(bytes.latents), Text(bytes.vae));
  fmt::print("layout           {} on {} of {}, ρ {:.3f}, density {:.3f}\n", planner,
             Counted(ranks, "rank"), Counted(threads, "thread"), layout.rho, mask.Density());
  fmt::print("time             about {:.0f} s: steps {:.0f}, decoding {:.0f}\n",
             seconds.steps + seconds.decode, seconds.steps, seconds.decode);
}

}  // namespace equitile
