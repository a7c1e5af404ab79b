// `equitile compare --html`: videos side by side, to be played or looked at frame by frame, with
// their difference and their curves, as one page that needs nothing but a browser.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "equitile/io/frames/png.h"
#include "equitile/io/json_value.h"
#include "equitile/quality/video_comparison.h"

namespace equitile {

// One video, which is in the page as pictures or lies beside it.
struct PageScreen {
  std::string label;
  std::vector<std::string> frames = {};  // PictureText
  std::string video = {};                // a path from the page
};

// A row of screens, the first of which is what the others are compared with.
struct PageRow {
  std::string name;
  std::vector<int64_t> frames;  // that are shown, of all
  std::vector<PageScreen> screens;
  std::vector<VideoComparison> curves;  // [screens - 1]
};

// Rows as JSON, so that pictures are held once.
Json PageRowJson(const PageRow& row);

struct ComparePage {
  std::string title;
  int64_t fps = 16;
  std::vector<std::pair<std::string, std::string>> facts;  // name, text
  Json rows = Json::array();                               // of PageRowJson
};

std::string ComparePageText(const ComparePage& page);

}  // namespace equitile
