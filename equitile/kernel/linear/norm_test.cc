#include "equitile/kernel/linear/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/reference/linear_reference.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

constexpr double kU = 0x1p-24;
constexpr float kEps = 1e-6f;

std::vector<float> Random(int64_t n, uint32_t stream, float scale = 1.0f, float offset = 0.0f) {
  const Rng rng(3, stream);
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = scale * rng.NormalAt(i) + offset;
  return x;
}

// Sums run in 16 chains at least; every addition rounds by at most u of what has been added so far.
double SumRoundings(int64_t width) { return static_cast<double>(width) / 16.0 + 6.0; }

// One row in double, and how far f32 may be off: the mean errs by its sum's roundings of the mean
// absolute value; the variance by its sum's and by that error's square; what follows is one
// rounding each.
void ExpectLayerNorm(const float* x, const LayerNorm& norm, const float* row,
                     const std::string& what) {
  const auto n = static_cast<double>(norm.width);
  double mean = 0.0, mean_abs = 0.0, var = 0.0;
  for (int64_t i = 0; i < norm.width; ++i) mean += x[i] / n, mean_abs += std::fabs(x[i]) / n;
  for (int64_t i = 0; i < norm.width; ++i) var += (x[i] - mean) * (x[i] - mean) / n;
  const double inverse = 1.0 / std::sqrt(var + static_cast<double>(norm.eps));
  const double mean_error = SumRoundings(norm.width) * kU * mean_abs;
  const double inverse_error =
      0.5 * (SumRoundings(norm.width) + 3.0) * kU + 2.0 * kU + std::pow(mean_error * inverse, 2);
  for (int64_t i = 0; i < norm.width; ++i) {
    const double scale = norm.scale ? norm.scale[i] : 1.0, shift = norm.shift ? norm.shift[i] : 0.0;
    const double z = (x[i] - mean) * inverse;
    const double error =
        std::fabs(scale) * (mean_error * inverse + std::fabs(z) * (inverse_error + 3.0 * kU)) +
        kU * (std::fabs(z * scale) + std::fabs(shift)) + 1e-30;
    ASSERT_LE(std::fabs(row[i] - (z * scale + shift)), error) << what << ", channel " << i;
  }
}

class NormTest : public testing::TargetTest {};

TEST_P(NormTest, LayerNormAgainstDouble) {
  for (int64_t width : {8, 16, 24, 40, 96, 192, 1000, 1536, 5120}) {
    constexpr int64_t kTokens = 3;
    const auto scale = Random(width, 1), shift = Random(width, 2);
    for (const auto& [size, offset] :
         {std::pair{1.0f, 0.0f}, {1e-3f, 0.0f}, {1e4f, 5e4f}, {0.1f, 10.0f}}) {
      const auto x = Random(kTokens * width, 4, size, offset);
      for (int parts = 0; parts < 4; ++parts) {
        const LayerNorm norm = {.x = x.data(),
                                .width = width,
                                .eps = kEps,
                                .scale = parts & 1 ? scale.data() : nullptr,
                                .shift = parts & 2 ? shift.data() : nullptr};
        std::vector<float> rows(x.size());
        LayerNormRows(norm, 0, kTokens, rows.data());
        for (int64_t t = 0; t < kTokens; ++t) {
          ExpectLayerNorm(x.data() + t * width, norm, rows.data() + t * width,
                          fmt::format("width {} size {} parts {}", width, size, parts));
        }
      }
    }
  }
}

// Golden files of whole models cannot show a wrong eps; rows whose variance is about eps can.
TEST_P(NormTest, EpsIsTheOneGiven) {
  constexpr int64_t kWidth = 96;
  const auto x = Random(kWidth, 1, 1e-3f);
  double square = 0.0;
  for (float v : x) square += static_cast<double>(v) * v / kWidth;
  float inverse[2];
  std::vector<float> rows[2];
  const float eps[] = {1e-6f, 1e-5f};
  for (int i = 0; i < 2; ++i) {
    InverseRms(x.data(), kWidth, kWidth, eps[i], 1, &inverse[i]);
    const double want = 1.0 / std::sqrt(square + static_cast<double>(eps[i]));
    EXPECT_NEAR(inverse[i], want, 1e-5 * want);
    const LayerNorm norm = {.x = x.data(), .width = kWidth, .eps = eps[i]};
    rows[i].resize(kWidth);
    LayerNormRows(norm, 0, 1, rows[i].data());
    ExpectLayerNorm(x.data(), norm, rows[i].data(), fmt::format("eps {}", eps[i]));
  }
  EXPECT_GT(inverse[0], 2.0f * inverse[1]);
  EXPECT_GT(std::fabs(rows[0][0]), 2.0f * std::fabs(rows[1][0]));
}

TEST_P(NormTest, InverseRmsAgainstDoubleWithStride) {
  for (int64_t width : {8, 24, 96, 1536, 5120}) {
    const int64_t stride = 3 * width + 5, tokens = 4;
    const auto x = Random(stride * tokens, 6, 2.0f, 0.5f);
    std::vector<float> inverse(static_cast<size_t>(tokens));
    InverseRms(x.data(), stride, width, kEps, tokens, inverse.data());
    for (int64_t t = 0; t < tokens; ++t) {
      double square = 0.0;
      for (int64_t i = 0; i < width; ++i)
        square += std::pow(x[static_cast<size_t>(t * stride + i)], 2);
      const double want = 1.0 / std::sqrt(square / static_cast<double>(width) + 1e-6);
      EXPECT_NEAR(inverse[static_cast<size_t>(t)], want,
                  (0.5 * (SumRoundings(width) + 3.0) + 2.0) * kU * want)
          << "width " << width << " token " << t;
    }
  }
}

TEST_P(NormTest, TokensDoNotDependOnTheCall) {
  constexpr int64_t kWidth = 200, kTokens = 37;
  const auto x = Random(kWidth * kTokens, 1), scale = Random(kWidth, 2), shift = Random(kWidth, 3);
  const LayerNorm norm = {
      .x = x.data(), .width = kWidth, .eps = kEps, .scale = scale.data(), .shift = shift.data()};
  std::vector<float> whole(x.size()), parts(x.size());
  LayerNormRows(norm, 0, kTokens, whole.data());
  for (int64_t begin = 0; begin < kTokens; begin += 5) {
    LayerNormRows(norm, begin, std::min<int64_t>(5, kTokens - begin),
                  parts.data() + begin * kWidth);
  }
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0);
}

TEST_P(NormTest, NanStaysInItsRow) {
  constexpr int64_t kWidth = 16;
  auto x = Random(2 * kWidth, 1);
  x[3] = std::nanf("");
  std::vector<float> rows(x.size());
  LayerNormRows({.x = x.data(), .width = kWidth, .eps = kEps}, 0, 2, rows.data());
  for (size_t i = 0; i < kWidth; ++i) {
    EXPECT_TRUE(std::isnan(rows[i]));
    EXPECT_FALSE(std::isnan(rows[kWidth + i]));
  }
}

TEST_P(NormTest, ActivationsOfAnyLength) {
  for (Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGeluTanh}) {
    for (int64_t n : {1, 7, 8, 29}) {
      const auto x = Random(n, 1, 3.0f);
      auto y = x;
      y.push_back(42.0f);
      Activate(activation, n, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(y[i], ReferenceActivation(activation, x[i]),
                    kActivationError * kU * std::fabs(x[i]));
      }
      EXPECT_EQ(y.back(), 42.0f);
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(NormTest);

}  // namespace
}  // namespace equitile
