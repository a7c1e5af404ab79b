#include "equitile/generate/video_maker.h"

#include <fmt/format.h>

#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/generate/attention_report.h"
#include "equitile/generate/compute_choice.h"

namespace equitile {

PipelineOptions PipelineOptionsOf(const GenerateRequest& request, WeightType weights) {
  PipelineOptions options;
  const Recipe& recipe = request.recipe;
  options.tokenizer = ParseTokenizerKind(recipe.Text("tokenizer"));
  options.weights = WeightTypesOf(recipe, weights);
  const ComputeChoice compute = ComputeOf(recipe);
  options.attention = compute.attention;
  options.vae = compute.vae;
  options.text = compute.text;
  options.sparsity = request.sparsity;
  options.planner = recipe.Text("planner");
  options.plan.reproducible = recipe.IsOn("reproducible");
  options.rule.threshold = recipe.Number("reuse_threshold");
  options.tiles_vae = recipe.IsOn("vae_tiling");
  options.machine = request.machine;
  options.wire = WireOf(recipe);
  return options;
}

VideoMaker::VideoMaker(const GenerateRequest& request, PipelineOptions options, Communicator& comm,
                       ThreadPool& pool, std::function<void(std::string_view)> say,
                       std::function<void()> alive, std::function<bool()> stop_requested)
    : request_(request),
      comm_(comm),
      say_(std::move(say)),
      alive_(std::move(alive)),
      stop_requested_(std::move(stop_requested)),
      pipeline_(request.folder, comm, pool, WithSignsOfLife(std::move(options))) {}

PipelineOptions VideoMaker::WithSignsOfLife(PipelineOptions options) const {
  options.stop_requested = [this] {
    Alive();
    return stop_requested_ && stop_requested_();
  };
  return options;
}

void VideoMaker::Prepare() {
  std::vector<std::string> prompts = {request_.config.negative_prompt};
  for (const GenerateTask& task : request_.tasks) prompts.push_back(task.prompt);
  rows_ = pipeline_.Encode(prompts, request_.config.text_rows);
  if (rows_.empty() || !pipeline_.Load()) throw Error("interrupted while loading");
  pipeline_.Vae();
}

Json VideoMaker::Sparsity(int64_t steps_skipped) const {
  const LayerAttention& attention = *pipeline_.SelfAttentionRuns();
  const Json totals = AttentionTotals(attention);
  Json summary = SparsitySummary(attention);
  summary["attention_seconds"] = totals["seconds"];
  summary["mask_seconds"] = totals["mask_seconds"];
  summary["plan_seconds"] = totals["plan_seconds"];
  summary["steps_skipped"] = steps_skipped;
  return summary;
}

MadeVideo VideoMaker::Make(size_t task) {
  GenerationConfig config = request_.config;
  config.seed = request_.tasks[task].seed;
  const bool leads = comm_.rank() == 0;
  DenoiseHooks hooks;
  int64_t steps_skipped = 0;
  hooks.after_step = [&](const DenoiseStep& step) {
    if (step.skipped) ++steps_skipped;
    say_(fmt::format("step {}/{}", step.done, step.steps));
  };
  const Stopwatch watch;
  MadeVideo video;
  DenoiseResult result = pipeline_.Denoise(config, rows_[task + 1], rows_[0], hooks);
  video.latents = std::move(result.latents);
  const auto add = [&](int64_t frame, std::span<const float> rgb) {
    RgbImage& image = video.frames.emplace_back(RgbImage{config.height, config.width, {}});
    image.pixels.resize(rgb.size());
    ToBytes(rgb, image.pixels);
    Alive();
    say_(fmt::format("decoding frame {}/{}", frame + 1, config.frames));
  };
  if (!result.finished || !pipeline_.Decode(config, video.latents, add)) throw Error("interrupted");
  video.seconds = watch.Seconds();
  if (!leads) return {};
  video.sparsity = Sparsity(steps_skipped);
  return video;
}

}  // namespace equitile
