// How alike two frames are: PSNR and SSIM as scikit-image defines them.
#pragma once

#include <optional>

#include "equitile/io/frames/png.h"

namespace equitile {

// Over all 8-bit values; nothing where the frames are identical.
std::optional<double> Psnr(const RgbImage& a, const RgbImage& b);

// structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
// data_range=255, channel_axis=-1). Both frames have the same size, at least kSsimPixels each way.
inline constexpr int64_t kSsimPixels = 11;  // its window
double Ssim(const RgbImage& a, const RgbImage& b);

}  // namespace equitile
