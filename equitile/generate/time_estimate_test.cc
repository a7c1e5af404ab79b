#include "equitile/generate/time_estimate.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

WanConfig Model(int64_t heads, int64_t head_dim, int64_t ffn, int64_t layers) {
  WanConfig model;
  model.heads = heads;
  model.head_dim = head_dim;
  model.ffn_dim = ffn;
  model.layers = layers;
  return model;
}

constexpr ComputeRates kRates = {.peak_gflops = 100, .attention_gflops = 73};

// `bench e2e` of the 1.3B shape spends 0.7 to 0.8 of the peak on products, and of wan-mini's 0.6 to
// 0.7.
TEST(TimeEstimate, StepsStayBelowThePeak) {
  for (const auto& [model, tokens, least, most] :
       {std::tuple(Model(12, 128, 8960, 30), 8192, 0.70, 0.80),
        {Model(6, 32, 576, 6), 3328, 0.6, 0.72}}) {
    const StepShape shape = {.tokens = tokens, .text_rows = 32};
    const double seconds = EstimateStepSeconds(model, shape, kRates, 1);
    const double of_peak = CountWanFlops(model, tokens, 32).Total() / seconds / 1e11;
    EXPECT_GT(of_peak, least);
    EXPECT_LT(of_peak, most);
  }
}

TEST(TimeEstimate, LessWorkTakesLess) {
  const WanConfig model = Model(12, 128, 8960, 30);
  const StepShape whole = {.tokens = 32760, .text_rows = 512, .passes = 2};
  const double seconds = EstimateStepSeconds(model, whole, kRates, 1);
  StepShape sparse = whole;
  sparse.density = 0.25;
  EXPECT_LT(EstimateStepSeconds(model, sparse, kRates, 1), 0.7 * seconds);
  StepShape uneven = whole;
  uneven.rho = 2;
  EXPECT_GT(EstimateStepSeconds(model, uneven, kRates, 1), 1.3 * seconds);
  StepShape skipping = whole;  // of the six d^2 and 2 d ffn of a layer's products, d^2
  skipping.skipped = 0.5;
  const double d = 12 * 128, products = 6 * d * d + 2 * d * 8960;
  const auto linear = [&](const StepShape& shape) {
    StepShape alone = shape;
    alone.density = 0;
    return EstimateStepSeconds(model, alone, kRates, 1);
  };
  EXPECT_NEAR((linear(whole) - linear(skipping)) / linear(whole), d * d / products, 0.015);
  StepShape one = whole;
  one.passes = 1;
  EXPECT_DOUBLE_EQ(EstimateStepSeconds(model, one, kRates, 1), seconds / 2);
  EXPECT_DOUBLE_EQ(EstimateStepSeconds(model, whole, kRates, 4), seconds / 4);
}

// More ranks than cores are no faster than the cores.
TEST(TimeEstimate, RanksShareWhatIsMeasured) {
  const ComputeRates one = MeasureRates(128, {}, 1, 1), many = MeasureRates(128, {}, 64, 4);
  EXPECT_GT(one.peak_gflops, one.attention_gflops);
  EXPECT_GT(many.attention_gflops, 0);
  EXPECT_LT(many.peak_gflops, one.peak_gflops * 4);
}

// The gains of docs/results/precision.md: 1.15 to 1.83, whatever the target.
TEST(TimeEstimate, DecodingInInt16IsFaster) {
  const GenerationConfig config = {.width = 256, .height = 256, .frames = 49};
  const auto seconds = [&](Compute compute) {
    return EstimateDecodeSeconds(VaeConfig(), config, kRates, compute, 1);
  };
  EXPECT_LT(seconds(Compute::kInt16), seconds(Compute::kF32) / 1.1);
  EXPECT_GT(seconds(Compute::kInt16), seconds(Compute::kF32) / 1.9);
}

}  // namespace
}  // namespace equitile
