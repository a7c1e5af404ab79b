#include "equitile/generate/pattern_advice.h"

#include <map>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/generate/time_estimate.h"
#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

constexpr double kLittle = 1.05;

// Shares of all calls, or of all heads in them.
struct Shares {
  double dense_calls = 0;
  double full = 0, skipped = 0;  // of the heads of calls that are not dense
  double density = 0;            // of the same
};

class SharesOf {
 public:
  SharesOf(const SparsityOptions& options, const TokenGrid& grid)
      : options_(options), file_(*options.pattern), grid_(grid) {}

  Shares Over(std::span<const float> sigmas) {
    Shares shares;
    double heads = 0, calls = 0;
    const auto steps = std::ssize(sigmas);
    for (int64_t step = 0; step < steps; ++step) {
      const double sigma = sigmas[static_cast<size_t>(step)];
      for (int64_t layer = 0; layer < file_.Layers(); ++layer, ++calls) {
        if (options_.warm_up.Covers(step, layer, steps)) {
          ++shares.dense_calls;
          continue;
        }
        for (const PatternHead& head : file_.HeadsAt(sigma, layer)) {
          shares.full += head.pattern.mode == HeadMode::kFull ? 1 : 0;
          shares.skipped += head.pattern.mode == HeadMode::kSkip ? 1 : 0;
          shares.density += Density(head);
          ++heads;
        }
      }
    }
    if (heads > 0) {
      for (double* share : {&shares.full, &shares.skipped, &shares.density}) *share /= heads;
    }
    shares.dense_calls /= calls;
    return shares;
  }

 private:
  // Bands of one size are many, and as dense in every head.
  double Density(const PatternHead& head) {
    if (file_.grid == grid_) return head.density;
    const HeadPattern here = OnGrid(head.pattern, file_.grid, grid_);
    if (here.mode == HeadMode::kStripes) return PatternDensity(here, grid_, file_.block_tokens);
    const auto [known, is_new] = densities_.try_emplace({here.mode, here.size}, 0.0);
    if (is_new) known->second = PatternDensity(here, grid_, file_.block_tokens);
    return known->second;
  }

  const SparsityOptions& options_;
  const PatternFile& file_;
  TokenGrid grid_;
  std::map<std::pair<HeadMode, double>, double> densities_;
};

ComputeRates RatesOf(const PatternFile& file) {
  const auto dial = [&](const char* name) {
    const auto found = file.dials.find(name);
    return found == file.dials.end() ? 0.0 : found->second;
  };
  ComputeRates rates{.peak_gflops = dial("peak_gflops"), .attention_gflops = dial("kernel_gflops")};
  const bool is_known = rates.peak_gflops > 0 && rates.attention_gflops > 0;
  // Only their ratio counts.
  if (!is_known) rates = {.peak_gflops = 100, .attention_gflops = 75};
  return rates;
}

}  // namespace

std::string WhyItSavesLittle(const SparsityOptions& options, const GenerationConfig& config,
                             const WanConfig& model, std::string_view name) {
  const Schedule schedule = MakeSchedule(config.sampler, config.steps, config.flow_shift);
  const Shares shares =
      SharesOf(options, VideoGrid(model, config))
          .Over(std::span(schedule.sigmas).first(static_cast<size_t>(config.steps)));
  const ComputeRates rates = RatesOf(*options.pattern);
  const auto seconds = [&](double density, double skipped) {
    return EstimateStepSeconds(model,
                               {.tokens = VideoTokens(model, config),
                                .text_rows = config.text_rows,
                                .passes = config.Passes(),
                                .density = density,
                                .skipped = skipped},
                               rates, 1);
  };
  const double dense = seconds(1, 0), sparse_calls = 1 - shares.dense_calls;
  // All that could be saved, and all that could be behind the dense steps.
  const double free = dense / seconds(0, shares.skipped);
  const double after = dense / seconds(shares.dense_calls, sparse_calls * shares.skipped);
  const bool keeps_modes = options.attention.kind == AttentionKind::kPattern;
  const double kept = keeps_modes ? shares.density : 0;
  const double speedup =
      dense / seconds(shares.dense_calls + sparse_calls * kept, sparse_calls * shares.skipped);
  if (speedup >= kLittle) return "";
  const double attention = 100 * (1 - seconds(0, 0) / dense);
  std::string why;
  if (free < kLittle) {
    why = fmt::format("self-attention is {:.0f} % of a step at this size, {} tokens", attention,
                      VideoTokens(model, config));
  } else if (after < kLittle) {
    why =
        fmt::format("{:.0f} % of the layers of all steps are dense (--dense-steps, --dense-layers)",
                    100 * shares.dense_calls);
  } else if (shares.full > 0.5) {
    why = fmt::format("too few sparse heads, {:.0f} % are full", 100 * shares.full);
  } else if (shares.density > 0.7) {
    why = fmt::format("large sizes, {:.0f} % of the blocks are kept", 100 * shares.density);
  } else {
    why = fmt::format("{:.0f} % of the blocks are kept, and self-attention is {:.0f} % of a step",
                      100 * shares.density, attention);
  }
  return fmt::format(
      "{}: saves less than 5 % (predicted speed-up of this video's steps {:.2f}): {}", name,
      speedup, why);
}

}  // namespace equitile
