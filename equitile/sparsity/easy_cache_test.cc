#include "equitile/sparsity/easy_cache.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr int64_t kNumbers = 8;

Tensor Filled(float value) {
  Tensor tensor(DType::kF32, {kNumbers});
  std::fill_n(tensor.DataAs<float>(), kNumbers, value);
  return tensor;
}

// Latents that go down by `pace` per step; passes whose velocity is 10 + rate * latents. Which of
// the steps were computed, as text: 1 or 0.
std::string Walk(EasyCache& cache, int64_t steps, float pace, float rate, int64_t first = 0,
                 float* last_velocity = nullptr) {
  std::string computed;
  for (int64_t step = first; step < steps; ++step) {
    const float x = 5.0f - pace * static_cast<float>(step);
    const std::vector<float> latents(kNumbers, x);
    std::vector<Tensor> passes;
    for (const float offset : {10.0f, 20.0f}) passes.push_back(Filled(offset + rate * x));
    if (cache.Skips(step, steps, latents)) {
      cache.FillIn(latents, passes);
      computed += '0';
    } else {
      cache.Computed(step, latents, passes);
      computed += '1';
    }
    if (last_velocity != nullptr) *last_velocity = passes[1].DataAs<float>()[3];
  }
  return computed;
}

TEST(EasyCache, SkipsWhileLittleIsForetold) {
  // A step moves latents by 0.1 and, at rate 2, outputs by 0.2, of about 15 + 5: 0.8 % each.
  EasyCache some({.bound = 0.025, .first_steps = 3});
  EXPECT_EQ(Walk(some, 12, 0.1f, 2.0f), "111000100101");
  EasyCache none({.bound = 1e-6, .first_steps = 3});
  EXPECT_EQ(Walk(none, 12, 0.1f, 2.0f), "111111111111");
  EasyCache all({.bound = 10, .first_steps = 3});
  EXPECT_EQ(Walk(all, 12, 0.1f, 2.0f), "111000000001");
}

TEST(EasyCache, FirstStepsAndTheLastAreComputed) {
  EasyCache cache({.bound = 10, .first_steps = 6});
  EXPECT_EQ(Walk(cache, 9, 0.1f, 2.0f), "111111001");
  EasyCache few({.bound = 10, .first_steps = 0});
  EXPECT_EQ(Walk(few, 4, 0.1f, 2.0f), "1111");
  EasyCache one({.bound = 10, .first_steps = 3});
  EXPECT_EQ(Walk(one, 1, 0.1f, 2.0f), "1");
}

TEST(EasyCache, AddsTheLastDifference) {
  EasyCache cache({.bound = 10, .first_steps = 3});
  float velocity = 0;
  Walk(cache, 3, 0.1f, 1.0f);
  const std::vector<float> latents(kNumbers, 4.5f);
  ASSERT_TRUE(cache.Skips(3, 9, latents));
  std::vector<Tensor> passes;
  passes.push_back(Filled(0));
  passes.push_back(Filled(0));
  cache.FillIn(latents, passes);
  velocity = passes[1].DataAs<float>()[0];
  EXPECT_FLOAT_EQ(velocity, 4.5f + 20.0f);  // rate 1: velocity - latents is 20 whatever the step
}

TEST(EasyCache, GoesOnFromItsState) {
  for (int64_t stop = 1; stop < 12; ++stop) {
    EasyCache whole({.bound = 0.025, .first_steps = 3}), before({.bound = 0.025, .first_steps = 3}),
        after({.bound = 0.025, .first_steps = 3});
    const std::string all = Walk(whole, 12, 0.1f, 2.0f);
    std::string parts;
    // The last of the steps must not be taken for the run's last.
    for (int64_t step = 0; step < stop; ++step) {
      const std::vector<float> latents(kNumbers, 5.0f - 0.1f * static_cast<float>(step));
      std::vector<Tensor> passes;
      for (const float offset : {10.0f, 20.0f})
        passes.push_back(Filled(offset + 2.0f * latents[0]));
      const bool skips = before.Skips(step, 12, latents);
      if (skips) before.FillIn(latents, passes);
      if (!skips) before.Computed(step, latents, passes);
      parts += skips ? '0' : '1';
    }
    after.Restore(before.State());
    EXPECT_EQ(parts + Walk(after, 12, 0.1f, 2.0f, stop), all) << stop;
  }
}

TEST(EasyCache, RefusesAnotherState) {
  EasyCache cache({});
  EXPECT_THROW(cache.Restore({}), InputError);
  Walk(cache, 5, 0.1f, 2.0f);
  SourceState state = cache.State();
  state["cache.last"].resize(4);
  EasyCache other({});
  EXPECT_THROW(other.Restore(state), InputError);
}

}  // namespace
}  // namespace equitile
