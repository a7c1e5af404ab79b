#include "equitile/kernel/rounding_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "equitile/base/rng.h"

namespace equitile {
namespace {

double ErrorOf(int64_t out, int64_t in, Compute compute,
               const std::function<float(int64_t row, int64_t column)>& times) {
  std::vector<float> numbers;
  const Rng rng(1, 0);
  for (int64_t i = 0; i < out * in; ++i)
    numbers.push_back(rng.NormalAt(static_cast<uint64_t>(i)) * times(i / in, i % in));
  const ConstView view(numbers.data(), {out, in});
  return RoundingError({&view, 1}, compute);
}

float Plain(int64_t, int64_t) { return 1; }
float LargeInputs(int64_t, int64_t column) { return column % 384 == 5 ? 30.0f : 1.0f; }
float LargeOutputs(int64_t row, int64_t) { return row % 97 == 3 ? 100.0f : 1.0f; }

// The unit is the largest of 1536 normal numbers, 3.5, over 127; rounding is off by 1 / sqrt(12).
TEST(RoundingError, IsThatOfNumbersAndOfLargeInputs) {
  EXPECT_NEAR(ErrorOf(300, 1536, Compute::kInt8, Plain), 8e-3, 3e-4);
  EXPECT_NEAR(ErrorOf(300, 1536, Compute::kInt8, LargeOutputs), 8e-3, 1e-3);
  EXPECT_NEAR(ErrorOf(300, 1536, Compute::kInt8, LargeInputs), 5.9e-2, 4e-3);
  EXPECT_NEAR(ErrorOf(300, 1536, Compute::kInt16, LargeInputs), 5.9e-2 * 127 / 2896, 2e-4);
  EXPECT_NEAR(ErrorOf(7, 1536, Compute::kInt8, Plain), 8e-3, 1e-3);
}

TEST(RoundingError, OfWhatIsNoMatrix) {
  EXPECT_EQ(ErrorOf(3, 5, Compute::kInt8, [](int64_t, int64_t) { return 0.0f; }), 0);
  EXPECT_TRUE(std::isnan(ErrorOf(3, 5, Compute::kInt8, [](int64_t row, int64_t column) {
    return row == 1 && column == 2 ? INFINITY : 1.0f;
  })));
}

}  // namespace
}  // namespace equitile
