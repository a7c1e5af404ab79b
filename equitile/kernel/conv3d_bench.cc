// How close are convolutions to the machine's multiply-adds, in each form, at the sizes of the Wan
// decoder? "of_peak" counts the products of the plain form: above 1 the form saves more than it
// costs.
#include "equitile/kernel/conv3d.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "equitile/kernel/fma_peak.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

void BM_Conv3d(benchmark::State& state) {
  const auto form = static_cast<ConvForm>(state.range(0));
  const int64_t in = state.range(1), out = state.range(2), frames = state.range(3);
  const int64_t size = state.range(4);
  const int64_t scale = form == ConvForm::kUpsampled ? 2 : 1;
  const int64_t taps = form == ConvForm::kUpsampled ? 1 : 3;
  ThreadPool pool(2);
  Workspace workspace;
  const Tensor weights = Tensor::Zeros(DType::kF32, {out, in, taps, 3, 3});
  const PackedConv packed(weights, std::vector<float>(static_cast<size_t>(out)), form, pool);
  const int64_t row = (size + 3) * PaddedChannels(in), frame = (size + 3) * row;
  const int64_t out_row = size * scale * PaddedChannels(out), out_frame = out_row * size * scale;
  auto input = AlignedBuffer<float>::Zeroed(frame * (frames + taps - 1));
  auto output = AlignedBuffer<float>::Zeroed(out_frame * frames);
  std::vector<const float*> in_frames;
  std::vector<float*> out_frames;
  for (int64_t f = 0; f < frames + taps - 1; ++f) {
    in_frames.push_back(input.data() + f * frame + row + PaddedChannels(in));
  }
  for (int64_t f = 0; f < frames; ++f) out_frames.push_back(output.data() + f * out_frame);
  const std::vector<float> gamma(static_cast<size_t>(PaddedChannels(out)), 1.0f);
  const ConvArgs args = {.weights = &packed,
                         .in = {in_frames, row},
                         .height = size,
                         .width = size,
                         .epilogue = {.gamma = gamma, .normed = {out_frames, out_row}}};
  double peak = 0.0, best = 1e9;
  for (auto _ : state) {
    state.PauseTiming();
    peak = std::max(peak, FmaPeakWindow(pool));
    state.ResumeTiming();
    const auto begin = std::chrono::steady_clock::now();
    Conv3d(args, pool, workspace);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const double flops = 2.0 * static_cast<double>(in * out * taps * 9 * frames * size * size) *
                       static_cast<double>(scale * scale);
  state.counters["of_peak"] = flops / best * 1e-9 / peak;
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

}  // namespace
}  // namespace equitile
