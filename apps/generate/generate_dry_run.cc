#include "apps/generate/generate_dry_run.h"

#include <fmt/format.h>

#include "apps/cli/table.h"
#include "apps/plan/plan_run.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/time_estimate.h"
#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

LaneMasks MaskOfLayer(const GenerateRequest& request) {
  if (request.sparsity.masks) return request.sparsity.masks->First();
  const int64_t tokens = VideoTokens(request.transformer, request.config);
  return BlockMask::Dense({.batch = request.config.Passes(), .heads = request.transformer.heads},
                          {.q_tokens = tokens, .kv_tokens = tokens});
}

PlanReport LayoutOf(const GenerateRequest& request, const LaneMasks& masks, int32_t ranks) {
  PlanOptions options;
  options.ranks = ranks;
  options.reproducible = request.recipe.IsOn("reproducible");
  options.cluster.wire.head_dim = request.transformer.head_dim;
  if (request.machine) ApplyMachine(*request.machine, masks.blocks().grid(), options);
  return ReportPlanners({ParsePlanner(request.recipe.Text("planner"), ranks)}, masks, options)
      .front();
}

struct Seconds {
  double steps = 0.0, decode = 0.0;  // of all videos
};

double MeanDensity(const GenerateRequest& request) {
  return request.sparsity.masks ? request.sparsity.masks->Density() : 1.0;
}

Seconds EstimateSeconds(const GenerateRequest& request, double rho, int32_t ranks, int threads) {
  const WanConfig& model = request.transformer;
  const GenerationConfig& config = request.config;
  const ComputeRates rates =
      request.machine ? RatesOf(*request.machine, model.head_dim, threads)
                      : MeasureRates(model.head_dim, UnderLauncher() ? 1 : ranks, threads);
  const StepShape shape = {.tokens = VideoTokens(model, config),
                           .text_rows = config.text_rows,
                           .passes = config.Passes(),
                           .density = MeanDensity(request),
                           .rho = rho};
  const auto videos = static_cast<double>(request.tasks.size());
  Seconds seconds{.steps = videos * static_cast<double>(config.steps) *
                           EstimateStepSeconds(model, shape, rates, ranks)};
  if (!request.tasks.front().output.empty()) {
    const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
    seconds.decode = videos * EstimateDecodeSeconds(vae, config, rates, ranks);
  }
  return seconds;
}

std::string Text(int64_t bytes) {
  return bytes < 10'000'000      ? fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6)
         : bytes < 1'000'000'000 ? fmt::format("{:.0f} MB", static_cast<double>(bytes) * 1e-6)
                                 : fmt::format("{:.1f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace

void PrintDryRun(const GenerateFlags& flags, const GenerateRequest& request, int32_t ranks,
                 int threads) {
  const GenerationConfig& config = request.config;
  const PlanReport layout = LayoutOf(request, MaskOfLayer(request), ranks);
  const std::string planner = layout.chosen.empty() ? layout.planner : layout.chosen;
  const RunBytes bytes = CountRunBytes(request, layout.buffer_bytes_max, ranks, threads);
  const Seconds seconds = EstimateSeconds(request, layout.rho, ranks, threads);
  const int64_t tokens = VideoTokens(request.transformer, config);
  if (flags.json) {
    PrintJson({{"tokens", tokens},
               {"steps", config.steps},
               {"passes", config.Passes()},
               {"ranks", ranks},
               {"threads_per_rank", threads},
               {"layout", planner},
               {"rho", layout.rho},
               {"density", MeanDensity(request)},
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
             Counted(ranks, "rank"), Counted(threads, "thread"), layout.rho, MeanDensity(request));
  fmt::print("time             about {:.0f} s: steps {:.0f}, decoding {:.0f}\n",
             seconds.steps + seconds.decode, seconds.steps, seconds.decode);
}

}  // namespace equitile
