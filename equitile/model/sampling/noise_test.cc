#include "equitile/model/sampling/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

TEST(Noise, EqualsTorchForTheSameSeed) {
  const TensorFiles golden = TensorFiles::OpenFile(InRepository("tests/golden/noise.safetensors"));
  for (const StoredTensor& tensor : golden.tensors()) {  // "seed42.shape1x16x3"
    const uint64_t seed = std::stoull(tensor.name.substr(4));
    const std::vector<float> expected = tensor.Floats();
    std::vector<float> noise(expected.size());
    FillNoise(NoiseKind::kTorch, seed, noise);
    for (size_t i = 0; i < noise.size(); ++i) {
      ASSERT_NEAR(noise[i], expected[i], 1e-6) << tensor.name << "[" << i << "]";
    }
  }
}

TEST(Noise, PhiloxIsNormalAndByIndex) {
  std::vector<float> noise(1 << 16);
  FillNoise(NoiseKind::kPhilox, 7, noise);
  double sum = 0, squares = 0;
  for (float value : noise) {
    sum += value;
    squares += double{value} * value;
  }
  const double n = static_cast<double>(noise.size());
  EXPECT_NEAR(sum / n, 0.0, 5 / std::sqrt(n));  // five standard deviations
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2.0 / n));
  std::vector<float> start(100);
  FillNoise(NoiseKind::kPhilox, 7, start);
  EXPECT_TRUE(std::equal(start.begin(), start.end(), noise.begin()));
}

TEST(Noise, Names) {
  EXPECT_EQ(ParseNoiseKind("torch"), NoiseKind::kTorch);
  EXPECT_EQ(ParseNoiseKind("philox"), NoiseKind::kPhilox);
  EXPECT_THROW(ParseNoiseKind("cuda"), InputError);
}

}  // namespace
}  // namespace equitile
