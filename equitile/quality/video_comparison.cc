#include "equitile/quality/video_comparison.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

nlohmann::ordered_json OrNull(const std::optional<double>& value) {
  if (value.has_value()) return *value;
  return nullptr;
}

}  // namespace

void VideoComparison::Add(const RgbImage& a, const RgbImage& b) {
  if (a.height != b.height || a.width != b.width) {
    throw InputError("frame {}: {} x {} and {} x {} pixels; sizes must be the same", frames_.size(),
                     a.width, a.height, b.width, b.height);
  }
  if (a.height < kSsimPixels || a.width < kSsimPixels) {
    throw InputError("frame {}: {} x {} pixels; SSIM needs at least {} x {}", frames_.size(),
                     a.width, a.height, kSsimPixels, kSsimPixels);
  }
  FrameComparison frame;
  frame.psnr = Psnr(a, b);
  if (frame.psnr.has_value()) frame.ssim = Ssim(a, b);
  frames_.push_back(frame);
}

int64_t VideoComparison::IdenticalFrames() const {
  return std::count_if(frames_.begin(), frames_.end(),
                       [](const FrameComparison& f) { return !f.psnr.has_value(); });
}

std::optional<double> VideoComparison::PsnrMean() const {
  double sum = 0.0;
  for (const FrameComparison& frame : frames_) sum += frame.psnr.value_or(0.0);
  const auto different = static_cast<int64_t>(frames_.size()) - IdenticalFrames();
  if (different == 0) return std::nullopt;
  return sum / static_cast<double>(different);
}

std::optional<double> VideoComparison::PsnrMin() const {
  return frames_[static_cast<size_t>(WorstFrame())].psnr;
}

double VideoComparison::SsimMean() const {
  double sum = 0.0;
  for (const FrameComparison& frame : frames_) sum += frame.ssim;
  return sum / static_cast<double>(frames_.size());
}

int64_t VideoComparison::WorstFrame() const {
  EQ_CHECK(!frames_.empty());
  static constexpr double kIdentical = 1e9;  // dB
  const auto worst = std::min_element(
      frames_.begin(), frames_.end(), [](const FrameComparison& x, const FrameComparison& y) {
        return x.psnr.value_or(kIdentical) < y.psnr.value_or(kIdentical);
      });
  return worst - frames_.begin();
}

nlohmann::ordered_json VideoComparison::ToJson() const {
  nlohmann::ordered_json json = {{"psnr_mean", OrNull(PsnrMean())},
                                 {"psnr_min", OrNull(PsnrMin())},
                                 {"ssim_mean", SsimMean()},
                                 {"identical_frames", IdenticalFrames()},
                                 {"frames", nlohmann::ordered_json::array()}};
  for (size_t f = 0; f < frames_.size(); ++f) {
    json["frames"].push_back(
        {{"frame", f}, {"psnr", OrNull(frames_[f].psnr)}, {"ssim", frames_[f].ssim}});
  }
  return json;
}

}  // namespace equitile
