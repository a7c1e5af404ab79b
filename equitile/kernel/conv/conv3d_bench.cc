// How close are convolutions to the machine's multiply-adds, in each form, at the sizes of the Wan
// decoder? "of_peak" counts the products of the plain form: above 1 the form saves more than it
// costs. And what does int16 give, and cost?
#include "equitile/kernel/conv/conv3d.h"

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/simd/fma_peak.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

using Plant = std::function<float()>;  // numbers; none: zeros

// A convolution of `frames` frames of size x size pixels, with its norm.
struct Problem {
  Problem(ConvForm form, int64_t in, int64_t out, int64_t frames, int64_t size, const Plant& plant)
      : taps(form == ConvForm::kUpsampled ? 1 : 3),
        scale(form == ConvForm::kUpsampled ? 2 : 1),
        weights(Tensor::Zeros(DType::kF32, {out, in, taps, 3, 3})),
        bias(static_cast<size_t>(out)),
        gamma(static_cast<size_t>(PaddedChannels(std::max(in, out))), 1.0f) {
    const int64_t pixel = PaddedChannels(in), row = (size + 3) * pixel, frame = (size + 3) * row;
    const int64_t out_row = size * scale * PaddedChannels(out), out_frame = out_row * size * scale;
    input = AlignedBuffer<float>::Zeroed(frame * (frames + taps - 1));
    output = AlignedBuffer<float>::Zeroed(out_frame * frames);
    if (plant) {
      for (int64_t i = 0; i < weights.Elements(); ++i) weights.DataAs<float>()[i] = plant();
      for (int64_t at = 0; at < input.size(); at += pixel) NormPixel(input.data() + at, in, plant);
    }
    for (int64_t f = 0; f < frames + taps - 1; ++f)
      in_frames.push_back(input.data() + f * frame + row + pixel);
    for (int64_t f = 0; f < frames; ++f) out_frames.push_back(output.data() + f * out_frame);
    args.in = {in_frames, row};
    args.height = args.width = size;
    args.epilogue.gamma = std::span(gamma).first(static_cast<size_t>(PaddedChannels(out)));
    args.epilogue.normed = {out_frames, out_row};
    flops = 2.0 * static_cast<double>(in * out * taps * 9 * frames * size * size * scale * scale);
  }

  // As a norm with a gamma of 1 leaves it.
  static void NormPixel(float* pixel, int64_t channels, const Plant& plant) {
    double squares = 0.0;
    for (int64_t c = 0; c < channels; ++c) squares += double{pixel[c] = plant()} * pixel[c];
    const double root = std::sqrt(static_cast<double>(channels) / squares);
    for (int64_t c = 0; c < channels; ++c) pixel[c] = static_cast<float>(pixel[c] * root);
  }

  int64_t taps, scale;
  Tensor weights;
  std::vector<float> bias, gamma;
  AlignedBuffer<float> input, output;
  std::vector<const float*> in_frames;
  std::vector<float*> out_frames;
  ConvArgs args;
  double flops = 0.0;
};

void BM_Conv3d(benchmark::State& state) {
  const auto form = static_cast<ConvForm>(state.range(0));
  ThreadPool pool(2);
  Workspace workspace;
  Problem p(form, state.range(1), state.range(2), state.range(3), state.range(4), {});
  const PackedConv packed(p.weights, p.bias, form, pool);
  p.args.weights = &packed;
  double peak = 0.0, best = 1e9;
  for (auto _ : state) {
    state.PauseTiming();
    peak = std::max(peak, FmaPeakWindow(pool));
    state.ResumeTiming();
    const auto begin = std::chrono::steady_clock::now();
    Conv3d(p.args, pool, workspace);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  state.counters["of_peak"] = p.flops / best * 1e-9 / peak;
}

// Of this thread: what else the machine does is not in it.
double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// int16 beside f32, in turns on one thread: the ratio of the least processor times, and the error
// of the normed output (L2, relative).
void BM_Conv3dInt16(benchmark::State& state) {
  const int64_t channels = state.range(0);
  ThreadPool pool(1);
  Workspace workspace;
  Rng rng(1);
  Problem p(ConvForm::kWinograd, channels, channels, state.range(1), state.range(2),
            [&] { return rng.Normal(); });
  PackedConv packed[2];
  packed[0].Assign(p.weights, p.bias, ConvForm::kWinograd, pool);
  packed[1].AssignRounded(p.weights, p.bias, p.gamma, pool);
  double best[2] = {1e9, 1e9};
  std::vector<float> f32;
  for (auto _ : state) {
    for (size_t i = 0; i < 2; ++i) {
      p.args.weights = &packed[i];
      const double begin = ProcessorSeconds();
      Conv3d(p.args, pool, workspace);
      best[i] = std::min(best[i], ProcessorSeconds() - begin);
      if (i == 0) f32.assign(p.output.data(), p.output.data() + p.output.size());
    }
  }
  double errors = 0.0, squares = 0.0;
  for (size_t i = 0; i < f32.size(); ++i) {
    const double error = p.output.data()[i] - f32[i];
    errors += error * error;
    squares += double{f32[i]} * f32[i];
  }
  state.counters["times_f32"] = best[0] / best[1];
  state.counters["error"] = std::sqrt(errors / squares);
}

constexpr int64_t kDirect = static_cast<int64_t>(ConvForm::kDirect);
constexpr int64_t kWinograd = static_cast<int64_t>(ConvForm::kWinograd);
constexpr int64_t kUpsampled = static_cast<int64_t>(ConvForm::kUpsampled);
BENCHMARK(BM_Conv3d)
    ->UseRealTime()
    ->ArgNames({"form", "in", "out", "frames", "size"})
    ->ArgsProduct({{kDirect, kWinograd}, {16}, {16}, {1, 4}, {256}})
    ->ArgsProduct({{kDirect, kWinograd}, {32}, {32}, {1, 4}, {128}})
    ->ArgsProduct({{kDirect, kWinograd}, {64}, {64}, {1, 2}, {64}})
    ->ArgsProduct({{kDirect, kWinograd}, {96}, {96}, {1, 4}, {128}})
    ->ArgsProduct({{kDirect, kWinograd}, {192}, {192}, {1, 4}, {128}})
    ->ArgsProduct({{kDirect, kWinograd}, {384}, {384}, {1, 2}, {64}})
    ->Args({kUpsampled, 32, 16, 4, 128})
    ->Args({kUpsampled, 192, 96, 1, 128});
BENCHMARK(BM_Conv3dInt16)
    ->ArgNames({"channels", "frames", "size"})
    ->Args({16, 4, 256})
    ->Args({32, 4, 128})
    ->Args({64, 2, 64})
    ->Args({96, 1, 128})
    ->Args({192, 1, 64});

}  // namespace
}  // namespace equitile
