#include "apps/generate/generate_dry_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/table.h"
#include "apps/plan/plan_run.h"
#include "equitile/base/duration.h"
#include "equitile/exec/wire.h"
#include "equitile/generate/density_estimate.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/time_estimate.h"
#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

PlanReport LayoutOf(const GenerateRequest& request, const LaneMasks& masks, int32_t ranks) {
  PlanOptions options;
  options.ranks = ranks;
  options.reproducible = request.recipe.IsOn("reproducible");
  const Compute compute = ComputeOf(request.recipe).attention;
  options.cluster.wire =
      WireFormatOf(request.transformer.head_dim, WireOf(request.recipe), compute);
  if (request.machine)
    ApplyMachine(*request.machine, masks.blocks().grid(), options, ComputeName(compute));
  return ReportPlanners({ParsePlanner(request.recipe.Text("planner"), ranks)}, masks, options)
      .front();
}

struct Seconds {
  double steps_low = 0.0, steps = 0.0, decode = 0.0;  // of all videos
  ComputeGain gain;
  double Low() const { return steps_low + decode; }
  double High() const { return steps + decode; }
};

// What looking at masses adds, in dense runs of a layer.
double Watching(const GenerateRequest& request, const DensityEstimate& density) {
  const RunOptions& options = request.options;
  const auto rows = static_cast<double>(density.masks.blocks().QBlocks());
  const double sampled =
      std::min(1.0, static_cast<double>(options.measured_q_blocks) / rows) * density.sparse_calls;
  return sampled + (options.masses.empty() ? 0.0 : 1.0);
}

Seconds EstimateSeconds(const GenerateRequest& request, const DensityEstimate& density, double rho,
                        int32_t ranks, int threads) {
  const WanConfig& model = request.transformer;
  const GenerationConfig& config = request.config;
  const ComputeRates rates =
      request.machine
          ? RatesOf(*request.machine, model.head_dim, ComputeOf(request.recipe), threads)
          : MeasureRates(model.head_dim, ComputeOf(request.recipe), UnderLauncher() ? 1 : ranks,
                         threads);
  const auto videos = static_cast<double>(request.tasks.size());
  const auto steps = [&](double computed) {
    const StepShape shape = {.tokens = VideoTokens(model, config),
                             .text_rows = config.text_rows,
                             .passes = config.Passes(),
                             .density = computed + Watching(request, density),
                             .rho = rho,
                             .skipped = density.skipped};
    return videos * static_cast<double>(config.steps) *
           EstimateStepSeconds(model, shape, rates, ranks);
  };
  Seconds seconds{
      .steps_low = steps(density.low), .steps = steps(density.high), .gain = rates.gain};
  const GenerateTask& task = request.tasks.front();
  if (!task.output.empty() || task.save_latents.empty()) {
    const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
    seconds.decode =
        videos * EstimateDecodeSeconds(vae, config, rates, ComputeOf(request.recipe).vae, ranks);
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
  const DensityEstimate density = EstimateDensity(request.sparsity, config, request.transformer);
  const PlanReport layout = LayoutOf(request, density.masks, ranks);
  const std::string planner = layout.chosen.empty() ? layout.planner : layout.chosen;
  const RunBytes bytes = CountRunBytes(request, layout.buffer_bytes_max, ranks, threads);
  const Seconds seconds = EstimateSeconds(request, density, layout.rho, ranks, threads);
  const int64_t tokens = VideoTokens(request.transformer, config);
  if (flags.json) {
    PrintJson(
        {{"tokens", tokens},
         {"steps", config.steps},
         {"passes", config.Passes()},
         {"ranks", ranks},
         {"threads_per_rank", threads},
         {"layout", planner},
         {"rho", layout.rho},
         {"density_low", density.low},
         {"density", density.high},
         {"bytes_per_rank",
          {{"program", kProgramBytes},
           {"weights_per_node", bytes.weights},
           {"activations", bytes.activations},
           {"attention", bytes.attention},
           {"latents", bytes.latents},
           {"vae", bytes.vae},
           {"total", bytes.Total()}}},
         {"compute", request.recipe.Text("compute")},
         {"int16_layers",
          WeightTypesOf(request.recipe, IntegerWeights(ComputeOf(request.recipe).linear)).int16},
         {"attention_gain", seconds.gain.attention},
         {"linear_gain", seconds.gain.linear},
         {"videos", request.tasks.size()},
         {"seconds_steps", seconds.steps},
         {"seconds_decode", seconds.decode},
         {"seconds_low", seconds.Low()},
         {"seconds", seconds.High()}});
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
  // One number, or from the least that masks may keep to everything.
  const std::string kept = density.IsRange()
                               ? fmt::format("{:.3f} to {:.3f}", density.low, density.high)
                               : fmt::format("{:.3f}", density.high);
  fmt::print("layout           {} on {} of {}, {} {:.3f}, density {}\n", planner,
             Counted(ranks, "rank"), Counted(threads, "thread"), Terminal::Of(stdout).Letters("ρ"),
             layout.rho, kept);
  if (const std::string gain = ComputeGainText(ComputeOf(request.recipe), seconds.gain);
      !gain.empty()) {
    fmt::print("arithmetic       {}\n", gain);
  }
  if (const std::string stay = StayInt16Text(request.recipe, request.transformer); !stay.empty())
    fmt::print("                 {}\n", stay);
  const auto time = [&](double low, double high) {
    return density.IsRange() ? fmt::format("{} to {}", DurationText(low), DurationText(high))
                             : DurationText(high);
  };
  fmt::print("time             about {}: steps {}, decoding {}\n",
             time(seconds.Low(), seconds.High()), time(seconds.steps_low, seconds.steps),
             DurationText(seconds.decode));
}

}  // namespace equitile
