#include "equitile/generate/time_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/base/topology.h"
#include "equitile/exec/calibrate.h"
#include "equitile/kernel/simd/fma_peak.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

// Parts of the multiply-add peak, from `bench e2e` and `bench attention` (docs/design/0007, 0003):
// what is far from a row of this table changes little.
struct Fraction {
  double size, of_peak;
};
constexpr Fraction kAttention[] = {{32, 0.70}, {64, 0.74}, {128, 0.76}};  // head_dim
constexpr Fraction kLinear[] = {{192, 0.72}, {1536, 0.79}};               // width
// Norms, rotations, residuals: multiply-adds that would take as long, per token, layer and column.
// Found the same for wan-mini and the shape of Wan 2.1 1.3B.
constexpr double kRestFlops = 780;
// Convolutions by output channels, counted as direct ones: transformed ones need fewer products,
// and with few channels the work around them shows.
constexpr Fraction kConvolution[] = {{16, 0.85}, {96, 1.25}};
// How many times as fast they are in int16, by channels, with VNNI and without (avx2 and avx512 are
// alike): docs/results/precision.md.
constexpr Fraction kInt16Vnni[] = {{16, 1.27}, {32, 1.64}, {64, 1.72}, {96, 1.83}};
constexpr Fraction kInt16Pairs[] = {{16, 1.15}, {96, 1.4}};

// Between two rows by the logarithm of the size, beyond the ends as there.
template <size_t kRows>
double Interpolated(const Fraction (&table)[kRows], double size) {
  if (size <= table[0].size) return table[0].of_peak;
  for (size_t i = 1; i < kRows; ++i) {
    const Fraction &low = table[i - 1], &high = table[i];
    if (size > high.size) continue;
    const double part = std::log(size / low.size) / std::log(high.size / low.size);
    return low.of_peak + part * (high.of_peak - low.of_peak);
  }
  return table[kRows - 1].of_peak;
}

double ConvolutionGain(Compute compute, double channels) {
  if (compute == Compute::kF32) return 1.0;
  return ActiveProducts() == IntegerProducts::kPairs ? Interpolated(kInt16Pairs, channels)
                                                     : Interpolated(kInt16Vnni, channels);
}

// Direct convolutions of all frames at one level of the decoder, in GFLOP, on one rank.
double LevelGflop(const VaeConfig& vae, const VaeUpBlockShape& shape, bool is_first,
                  double pixels) {
  const auto in = static_cast<double>(shape.in), out = static_cast<double>(shape.out);
  double per_pixel =
      27.0 * out * (in + out) + 27.0 * 2.0 * out * out * static_cast<double>(vae.res_blocks);
  if (is_first) per_pixel += 27.0 * 4.0 * in * in;  // the middle
  if (shape.upsample_time) per_pixel += 3.0 * 2.0 * out * out;
  // Nine taps to half the channels, on four times the pixels.
  if (shape.upsample) per_pixel += 4.0 * 9.0 * out * out / 2.0;
  return 2e-9 * per_pixel * pixels;
}

}  // namespace

ComputeGain GainOf(const Machine& machine, int64_t head_dim, const ComputeChoice& compute) {
  const auto rate = [&](Compute of) {
    Cluster cluster;
    cluster.wire.head_dim = head_dim;
    ApplyMachine(machine, BlockGrid().block_tokens, ComputeName(of), cluster);
    return cluster.gflops;  // f32's where it knows no other
  };
  double f32 = 0, own = 0;
  for (const LinearRate& linear : machine.linear) {
    if (linear.dtype == ComputeName(Compute::kF32)) f32 = linear.gflops;
    if (linear.dtype == ComputeName(compute.linear)) own = linear.gflops;
  }
  return {.attention = rate(compute.attention) / rate(Compute::kF32),
          .linear = f32 > 0 && own > 0 ? own / f32 : 1.0};
}

ComputeGain MeasureGain(int64_t head_dim, const ComputeChoice& compute) {
  const SpeedUps measured = MeasureSpeedUps(compute.attention, compute.linear, head_dim);
  return {.attention = measured.attention, .linear = measured.linear};
}

std::string ComputeGainText(const ComputeChoice& compute, const ComputeGain& gain) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, Compute of, double times) {
    if (of != Compute::kF32)
      parts.push_back(fmt::format("{} in {}: {:.2f} × f32", what, ComputeName(of), times));
  };
  add("attention", compute.attention, gain.attention);
  add("linear layers", compute.linear, gain.linear);
  if (parts.empty()) return "";
  return fmt::format("{} on this CPU ({})", fmt::join(parts, ", "), ActiveTargetName());
}

ComputeRates RatesOf(const Machine& machine, int64_t head_dim, const ComputeChoice& compute,
                     int threads) {
  Cluster cluster;
  cluster.wire.head_dim = head_dim;
  ApplyMachine(machine, BlockGrid().block_tokens, ComputeName(compute.attention), cluster);
  const double scale = static_cast<double>(threads) / static_cast<double>(machine.threads);
  return {.peak_gflops = scale * machine.peak_gflops,
          .attention_gflops = scale * cluster.gflops,
          .gain = GainOf(machine, head_dim, compute)};
}

ComputeRates MeasureRates(int64_t head_dim, const ComputeChoice& compute, int32_t ranks,
                          int threads) {
  constexpr int kWindows = 8;
  const int64_t wanted = int64_t{ranks} * threads;
  ThreadPool pool(static_cast<int>(std::min<int64_t>(wanted, DefaultThreads())));
  double peak = 0.0;
  for (int i = 0; i < kWindows; ++i) peak = std::max(peak, FmaPeakWindow(pool));
  peak /= ranks;
  const ComputeGain gain = MeasureGain(head_dim, compute);
  return {.peak_gflops = peak,
          .attention_gflops =
              gain.attention * peak * Interpolated(kAttention, static_cast<double>(head_dim)),
          .gain = gain};
}

double EstimateStepSeconds(const WanConfig& model, const StepShape& shape,
                           const ComputeRates& rates, int32_t ranks) {
  const WanFlops flops = CountWanFlops(model, shape.tokens, shape.text_rows);
  const auto width = static_cast<double>(model.Width());
  const double skipped = shape.skipped * 2 * 2 * width * width *
                         static_cast<double>(shape.tokens * model.layers);  // two projections
  const double linear = rates.gain.linear * rates.peak_gflops *
                        Interpolated(kLinear, static_cast<double>(model.Width()));
  const double rest = kRestFlops * static_cast<double>(shape.tokens * model.layers * model.Width());
  const double seconds =
      (flops.self_attention * shape.density * shape.rho + flops.cross_attention) /
          rates.attention_gflops +
      (flops.linear - skipped) / linear + rest / rates.peak_gflops;
  return 1e-9 * seconds * static_cast<double>(shape.passes) / ranks;
}

double EstimateDecodeSeconds(const VaeConfig& vae, const GenerationConfig& config,
                             const ComputeRates& rates, Compute compute, int32_t ranks) {
  double seconds = 0.0;
  int64_t frames = config.LatentFrames(), scale = 1;
  bool is_first = true;
  for (const VaeUpBlockShape& shape : vae.UpBlocks()) {
    // What lies at the resolution of the latents is computed by everyone.
    const int64_t rows =
        is_first ? config.LatentHeight() : (config.LatentHeight() + ranks - 1) / ranks;
    const auto pixels = static_cast<double>(frames * rows * config.LatentWidth() * scale * scale);
    const auto channels = static_cast<double>(shape.out);
    seconds += LevelGflop(vae, shape, is_first, pixels) /
               (rates.peak_gflops * Interpolated(kConvolution, channels) *
                ConvolutionGain(compute, channels));
    if (shape.upsample_time) frames = 2 * frames - 1;
    if (shape.upsample) scale *= 2;
    is_first = false;
  }
  return seconds;
}

}  // namespace equitile
