#include "equitile/quality/frame_quality.h"

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr int64_t kRadius = kSsimPixels / 2;  // 3.5 deviations, rounded

std::array<double, kSsimPixels> GaussWeights() {
  constexpr double kSigma = 1.5;
  std::array<double, kSsimPixels> weights;
  double sum = 0.0;
  for (int64_t i = 0; i < kSsimPixels; ++i) {
    const auto x = static_cast<double>(i - kRadius);
    sum += weights[static_cast<size_t>(i)] = std::exp(-0.5 * x * x / (kSigma * kSigma));
  }
  for (double& w : weights) w /= sum;
  return weights;
}

// A plane [height][width] filtered where the window fits: [height - 10][width - 10]. The mean looks
// at nothing else, so borders need no rule.
class GaussFilter {
 public:
  GaussFilter(int64_t height, int64_t width)
      : height_(height), width_(width), columns_(static_cast<size_t>(height * width)) {}

  std::vector<double> operator()(std::span<const double> plane) {
    const int64_t inner_height = height_ - 2 * kRadius, inner_width = width_ - 2 * kRadius;
    for (int64_t i = 0; i < inner_height * width_; ++i) {
      double sum = 0.0;
      for (int64_t k = 0; k < kSsimPixels; ++k) {
        sum += weights_[static_cast<size_t>(k)] * plane[static_cast<size_t>(i + k * width_)];
      }
      columns_[static_cast<size_t>(i)] = sum;
    }
    std::vector<double> out;
    out.reserve(static_cast<size_t>(inner_height * inner_width));
    for (int64_t y = 0; y < inner_height; ++y) {
      for (int64_t x = 0; x < inner_width; ++x) {
        double sum = 0.0;
        for (int64_t k = 0; k < kSsimPixels; ++k) {
          sum +=
              weights_[static_cast<size_t>(k)] * columns_[static_cast<size_t>(y * width_ + x + k)];
        }
        out.push_back(sum);
      }
    }
    return out;
  }

 private:
  const std::array<double, kSsimPixels> weights_ = GaussWeights();
  const int64_t height_, width_;
  std::vector<double> columns_;
};

double ChannelSsim(const RgbImage& a, const RgbImage& b, size_t channel, GaussFilter& filter) {
  constexpr double kC1 = 0.01 * 255 * 0.01 * 255, kC2 = 0.03 * 255 * 0.03 * 255;
  const size_t pixels = a.pixels.size() / 3;
  std::vector<double> x(pixels), y(pixels), xx(pixels), yy(pixels), xy(pixels);
  for (size_t i = 0; i < pixels; ++i) {
    x[i] = a.pixels[i * 3 + channel];
    y[i] = b.pixels[i * 3 + channel];
    xx[i] = x[i] * x[i];
    yy[i] = y[i] * y[i];
    xy[i] = x[i] * y[i];
  }
  const std::vector<double> ux = filter(x), uy = filter(y), uxx = filter(xx), uyy = filter(yy),
                            uxy = filter(xy);
  double sum = 0.0;
  for (size_t i = 0; i < ux.size(); ++i) {
    const double vx = uxx[i] - ux[i] * ux[i], vy = uyy[i] - uy[i] * uy[i];
    const double vxy = uxy[i] - ux[i] * uy[i];
    sum += (2 * ux[i] * uy[i] + kC1) * (2 * vxy + kC2) /
           ((ux[i] * ux[i] + uy[i] * uy[i] + kC1) * (vx + vy + kC2));
  }
  return sum / static_cast<double>(ux.size());
}

}  // namespace

std::optional<double> Psnr(const RgbImage& a, const RgbImage& b) {
  EQ_CHECK(a.pixels.size() == b.pixels.size());
  int64_t squares = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    const int64_t difference = int64_t{a.pixels[i]} - b.pixels[i];
    squares += difference * difference;
  }
  if (squares == 0) return std::nullopt;
  const double mean = static_cast<double>(squares) / static_cast<double>(a.pixels.size());
  return 10.0 * std::log10(255.0 * 255.0 / mean);
}

double Ssim(const RgbImage& a, const RgbImage& b) {
  EQ_CHECK(a.height == b.height && a.width == b.width);
  EQ_CHECK(a.height >= kSsimPixels && a.width >= kSsimPixels);
  GaussFilter filter(a.height, a.width);
  double sum = 0.0;
  for (size_t channel = 0; channel < 3; ++channel) sum += ChannelSsim(a, b, channel, filter);
  return sum / 3.0;
}

}  // namespace equitile
