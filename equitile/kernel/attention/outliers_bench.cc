// How far are int16 and int8 from f32 where a few channels or tokens are much larger than the rest?
// Shapes of a 1.3B model. Numbers are planted; the counters are errors (L2, relative to f32's
// result), the time is that of the check.
#include <benchmark/benchmark.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/linear/linear.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

constexpr float kChannelTimes = 30.0f, kTokenTimes = 100.0f;
constexpr int64_t kChannelEvery = 384, kTokenEvery = 97;  // 4 of 1536 channels, 1 % of tokens

using Plant = std::function<float(int64_t token, int64_t channel, float number)>;

float Plain(int64_t, int64_t, float number) { return number; }
float LargeChannels(int64_t, int64_t channel, float number) {
  return channel % kChannelEvery == 5 ? kChannelTimes * number : number;
}
float ConstantChannel(int64_t, int64_t channel, float number) {
  return channel == 5 ? kChannelTimes : number;
}
float LargeTokens(int64_t token, int64_t, float number) {
  return token % kTokenEvery == 3 ? kTokenTimes * number : number;
}

Tensor Planted(int64_t tokens, int64_t channels, uint32_t stream, float deviation,
               const Plant& plant) {
  Tensor tensor(DType::kF32, {tokens, channels});
  const Rng rng(1, stream);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      const float number = rng.NormalAt(static_cast<uint64_t>(t * channels + c));
      tensor.DataAs<float>()[t * channels + c] = plant(t, c, deviation * number);
    }
  }
  return tensor;
}

double RelativeError(const Tensor& found, const Tensor& wanted) {
  double errors = 0.0, squares = 0.0;
  for (int64_t i = 0; i < wanted.Elements(); ++i) {
    const double is = wanted.view().Reshape({wanted.Elements()}).Load(i);
    const double error = found.view().Reshape({found.Elements()}).Load(i) - is;
    errors += error * error;
    squares += is * is;
  }
  return std::sqrt(errors / squares);
}

struct AttentionCase {
  std::string name;
  Plant q = Plain, k = Plain, v = Plain;
  bool centered = false;  // the mean key is taken from keys, as generate does for int8
};

void AttentionErrors(benchmark::State& state, const AttentionCase& c) {
  constexpr int64_t kTokens = 2048, kHeadDim = 128;
  const Tensor q = Planted(kTokens, kHeadDim, 0, 1.0f, c.q);
  const Tensor k = Planted(kTokens, kHeadDim, 1, 1.0f, c.k);
  const Tensor v = Planted(kTokens, kHeadDim, 2, 1.0f, c.v);
  std::vector<float> mean(kHeadDim);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kHeadDim; ++d)
      mean[static_cast<size_t>(d)] += k.view().Load(t, d) / static_cast<float>(kTokens);
  }
  const float* const center = mean.data();
  const BlockGrid grid = {.q_tokens = kTokens, .kv_tokens = kTokens, .block_tokens = 64};
  const AttentionRows rows = AttentionRows::Dense({.batch = 1, .heads = 1}, grid);
  const Shape shape = {1, kTokens, 1, kHeadDim};
  ThreadPool pool(2);
  Workspace workspace;
  const auto run = [&](Compute compute) {
    Tensor out(DType::kF32, shape);
    AttentionArgs args = {.lanes = {.batch = 1, .heads = 1},
                          .grid = grid,
                          .head_dim = kHeadDim,
                          .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
                          .rows = &rows,
                          .q = ConstView(q).Reshape(shape),
                          .k = ConstView(k).Reshape(shape),
                          .v = ConstView(v).Reshape(shape),
                          .compute = compute,
                          .out = out};
    if (c.centered) args.k_center = {&center, 1};
    Attention(args, pool, workspace);
    return out;
  };
  for (auto _ : state) {
    const Tensor f32 = run(Compute::kF32);
    state.counters["int16"] = RelativeError(run(Compute::kInt16), f32);
    state.counters["int8"] = RelativeError(run(Compute::kInt8), f32);
  }
}

struct LinearCase {
  std::string name;
  Plant x = Plain, weights = Plain;
};

void LinearErrors(benchmark::State& state, const LinearCase& c) {
  constexpr int64_t kTokens = 512, kSize = 1536;
  const Tensor x = Planted(kTokens, kSize, 3, 1.0f, c.x);
  const Tensor weights =
      Planted(kSize, kSize, 4, 1.0f / std::sqrt(static_cast<float>(kSize)), c.weights);
  ThreadPool pool(2);
  Workspace workspace;
  const auto run = [&](WeightType type) {
    AlignedBuffer<std::byte> packed(PackedLinearBytes(kSize, kSize, type));
    PackLinear(weights, type, packed.span(), pool);
    Tensor y(DType::kF32, {kTokens, kSize});
    LinearArgs args;
    args.weights = PackedLinear::View(packed.span());
    args.x = ConstView(x);
    args.y = y;
    Linear(args, pool, workspace);
    return y;
  };
  for (auto _ : state) {
    const Tensor f32 = run(WeightType::kF32);
    state.counters["int16"] = RelativeError(run(WeightType::kInt16), f32);
    state.counters["int8"] = RelativeError(run(WeightType::kInt8), f32);
  }
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const AttentionCase& c : {
           AttentionCase{.name = "even"},
           AttentionCase{.name = "constant_channel_of_k", .k = ConstantChannel},
           AttentionCase{
               .name = "constant_channel_of_k_centered", .k = ConstantChannel, .centered = true},
           AttentionCase{
               .name = "large_channel_of_q_and_k", .q = LargeChannels, .k = LargeChannels},
           AttentionCase{.name = "large_channel_of_v", .v = LargeChannels},
           AttentionCase{.name = "large_tokens_of_k", .k = LargeTokens},
           AttentionCase{.name = "large_tokens_of_v", .v = LargeTokens},
       }) {
    benchmark::RegisterBenchmark(("Outliers/attention/" + c.name).c_str(), AttentionErrors, c)
        ->Iterations(1);
  }
  for (const LinearCase& c : {
           LinearCase{.name = "even"},
           LinearCase{.name = "large_channels", .x = LargeChannels},
           LinearCase{.name = "large_tokens", .x = LargeTokens},
           LinearCase{.name = "large_weights", .weights = LargeChannels},
       }) {
    benchmark::RegisterBenchmark(("Outliers/linear/" + c.name).c_str(), LinearErrors, c)
        ->Iterations(1);
  }
  return true;
}();

}  // namespace
}  // namespace equitile
