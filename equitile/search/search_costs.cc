#include "equitile/search/search_costs.h"

#include <algorithm>

#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/time_estimate.h"
#include "equitile/search/choice/error_table.h"
#include "equitile/search/judge/calibration_run.h"
#include "equitile/search/judge/velocity_judge.h"
#include "equitile/search/trials/attention_maps.h"
#include "equitile/search/trials/head_trials.h"
#include "equitile/search/trials/lane_gather.h"
#include "equitile/search/trials/trial_recorder.h"

namespace equitile {
namespace {

// Of the request's transformer, and of its decoder for one video; only their ratio counts.
struct VideoSeconds {
  double step = 0, decode = 0;
};
VideoSeconds SecondsOf(const GenerateRequest& request) {
  const ComputeRates rates = {.peak_gflops = 100, .attention_gflops = 75};
  const GenerationConfig& config = request.config;
  return {.step = EstimateStepSeconds(request.transformer,
                                      {.tokens = VideoTokens(request.transformer, config),
                                       .text_rows = config.text_rows,
                                       .passes = config.Passes()},
                                      rates, 1),
          .decode = EstimateDecodeSeconds(ReadVaeConfig(request.folder.Config("vae")), config,
                                          rates, Compute::kF32, 1)};
}

}  // namespace

SearchBytes CountSearchBytes(const GenerateRequest& request, const SearchOptions& options,
                             int32_t ranks, int threads) {
  const WanConfig& model = request.transformer;
  const int64_t prompts = std::ssize(request.tasks);
  const int64_t tokens = VideoTokens(model, request.config);
  const int64_t at_once = IsPaper(options) ? prompts : 1;
  const int64_t lanes = at_once * request.config.Passes() * model.heads;
  const int64_t gathered = LaneGather::LaneBytes(tokens, model.head_dim);
  const int64_t held = std::clamp<int64_t>(kRoundBytes / gathered, 1, CeilDiv(lanes, ranks));
  const VelocityJudge judge(request, options.dense_steps, MassPrompts(options, prompts));
  const int64_t recorded = (LooksTwice(options) ? 2 : 1) *
                           ErrorTable::Bytes({.prompts = prompts,
                                              .steps = request.config.steps - options.dense_steps,
                                              .layers = model.layers,
                                              .heads = model.heads,
                                              .options = std::ssize(OptionsFor(options))});
  return {.activations = at_once * CountRunBytes(request, 0, ranks, threads).activations,
          .table = 2 * (recorded +
                        AttentionMaps::Bytes(model.layers, model.heads,
                                             CeilDiv(tokens, BlockGrid().block_tokens)) +
                        judge.Bytes()),
          .lanes = held * (gathered + HeadTrials::LaneBytes(tokens, model.head_dim))};
}

double VideoSteps(const GenerateRequest& videos, size_t tasks, int64_t files,
                  const GenerateRequest& unit) {
  const VideoSeconds video = SecondsOf(videos);
  const auto sparse = static_cast<double>(files);
  const double seconds =
      video.step * static_cast<double>(videos.config.steps) * (1 + kSparsePart * sparse) +
      video.decode * (1 + sparse);
  return static_cast<double>(tasks) * seconds / SecondsOf(unit).step;
}

}  // namespace equitile
