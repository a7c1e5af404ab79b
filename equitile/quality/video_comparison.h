// Two videos frame by frame: what `equitile compare` prints, and whoever compares frames before
// they are encoded.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "equitile/quality/frame_quality.h"

namespace equitile {

struct FrameComparison {
  std::optional<double> psnr;  // nothing: identical
  double ssim = 1.0;
};

class VideoComparison {
 public:
  // Throws InputError where sizes differ or are below kSsimPixels.
  void Add(const RgbImage& a, const RgbImage& b);

  const std::vector<FrameComparison>& frames() const { return frames_; }
  int64_t IdenticalFrames() const;
  // Over the frames that differ; nothing where none does.
  std::optional<double> PsnrMean() const;
  std::optional<double> PsnrMin() const;
  double SsimMean() const;
  int64_t WorstFrame() const;  // lowest PSNR; the first one where all are identical

  nlohmann::ordered_json ToJson() const;

 private:
  std::vector<FrameComparison> frames_;
};

}  // namespace equitile
