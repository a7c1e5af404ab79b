// `equitile compare --html`: frames side by side and their difference, as one page that needs
// nothing but a browser.
#pragma once

#include <string>
#include <vector>

#include "equitile/quality/video_comparison.h"

namespace equitile {

struct FramePair {
  int64_t frame = 0;
  RgbImage a, b;
};

std::string ComparePage(const std::string& name_a, const std::string& name_b,
                        const VideoComparison& comparison, const std::vector<FramePair>& shown);

}  // namespace equitile
