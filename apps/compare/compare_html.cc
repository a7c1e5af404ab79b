#include "apps/compare/compare_html.h"

#include "apps/cli/html.h"
#include "apps/cli/page_style.h"
#include "apps/compare/compare_html_template.h"

namespace equitile {
namespace {

// Small differences are what one looks for; this makes a difference of 16 levels half white.
constexpr int kGain = 8;

Json CurveJson(const std::string& label, const VideoComparison& comparison) {
  Json psnr = Json::array(), ssim = Json::array();
  for (const FrameComparison& frame : comparison.frames()) {
    psnr.push_back(frame.psnr ? Json(*frame.psnr) : Json(nullptr));
    ssim.push_back(frame.ssim);
  }
  return {{"label", label}, {"psnr", std::move(psnr)}, {"ssim", std::move(ssim)}};
}

}  // namespace

Json PageRowJson(const PageRow& row) {
  Json screens = Json::array(), curves = Json::array();
  for (size_t i = 0; i < row.screens.size(); ++i) {
    const PageScreen& screen = row.screens[i];
    Json json = {{"label", screen.label}};
    if (screen.video.empty()) {
      json["frames"] = screen.frames;
    } else {
      json["video"] = screen.video;
    }
    screens.push_back(std::move(json));
    if (i > 0) curves.push_back(CurveJson(screen.label, row.curves[i - 1]));
  }
  return {{"name", row.name},
          {"worst", row.curves.front().WorstFrame()},
          {"frames", row.frames},
          {"screens", std::move(screens)},
          {"curves", std::move(curves)}};
}

std::string ComparePageText(const ComparePage& page) {
  Json facts = Json::array();
  for (const auto& [name, text] : page.facts) facts.push_back(Json::array({name, text}));
  const Json data = {{"title", page.title},
                     {"fps", page.fps},
                     {"gain", kGain},
                     {"facts", std::move(facts)},
                     {"rows", page.rows}};
  return PageHead("compare") + kComparePageBody + ScriptText(data) + kComparePageTail;
}

}  // namespace equitile
