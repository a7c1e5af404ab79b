#include "apps/compare/compare_html.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/html.h"
#include "equitile/base/base64.h"

namespace equitile {
namespace {

// Small differences are what one looks for; this makes a difference of 16 levels half white.
constexpr int kGain = 8;

RgbImage Difference(const RgbImage& a, const RgbImage& b) {
  RgbImage image = a;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    image.pixels[i] =
        static_cast<uint8_t>(std::min(255, kGain * std::abs(int{a.pixels[i]} - b.pixels[i])));
  }
  return image;
}

std::string Picture(const RgbImage& image) {
  const std::vector<std::byte> png = EncodePng(image);
  return fmt::format("<td><img src=\"data:image/png;base64,{}\"></td>",
                     Base64({reinterpret_cast<const uint8_t*>(png.data()), png.size()}));
}

std::string PsnrText(const std::optional<double>& psnr) {
  return psnr.has_value() ? fmt::format("{:.2f} dB", *psnr) : "identical";
}

// PSNR over time, higher is better; identical frames touch the upper edge.
std::string Chart(const VideoComparison& comparison) {
  constexpr double kWidth = 720, kHeight = 90, kTop = 60;  // dB at the upper edge
  const auto& frames = comparison.frames();
  std::string points;
  for (size_t f = 0; f < frames.size(); ++f) {
    const double db = std::clamp(frames[f].psnr.value_or(kTop), 0.0, kTop);
    const double x = kWidth * (static_cast<double>(f) + 0.5) / static_cast<double>(frames.size());
    points += fmt::format("{:.1f},{:.1f} ", x, kHeight * (1.0 - db / kTop));
  }
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\"><rect width=\"{0}\" "
      "height=\"{1}\" class=\"back\"/><polyline points=\"{2}\" class=\"line\"/></svg>"
      "<p class=\"note\">PSNR per frame, 0 to {3} dB</p>",
      kWidth, kHeight, points, kTop);
}

}  // namespace

std::string ComparePage(const std::string& name_a, const std::string& name_b,
                        const VideoComparison& comparison, const std::vector<FramePair>& shown) {
  const std::string a = HtmlEscaped(name_a), b = HtmlEscaped(name_b);
  std::string page = fmt::format(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0} and {1}</title><style>"
      "body{{font:15px system-ui,sans-serif;margin:2em;background:#fff;color:#222}}"
      "td,th{{padding:4px 8px 4px 0;text-align:left;vertical-align:top}}img{{max-width:30vw;"
      "min-width:160px;image-rendering:pixelated}}.note{{color:#777}}.back{{fill:#f2f2f2}}"
      ".line{{fill:none;stroke:#06c;stroke-width:2}}</style><h1>{0} and {1}</h1>"
      "<p>{2} frames, {3} identical. PSNR {4} on average, {5} at worst (frame {6}). SSIM {7:.4f} "
      "on average.</p>{8}<table><tr><th>frame</th><th>{0}</th><th>{1}</th><th>difference, times "
      "{9}</th></tr>",
      a, b, comparison.frames().size(), comparison.IdenticalFrames(),
      PsnrText(comparison.PsnrMean()), PsnrText(comparison.PsnrMin()), comparison.WorstFrame(),
      comparison.SsimMean(), Chart(comparison), kGain);
  for (const FramePair& pair : shown) {
    const FrameComparison& frame = comparison.frames()[static_cast<size_t>(pair.frame)];
    page += fmt::format("<tr><td>{}<br>{}<br>SSIM {:.4f}</td>", pair.frame, PsnrText(frame.psnr),
                        frame.ssim) +
            Picture(pair.a) + Picture(pair.b) + Picture(Difference(pair.a, pair.b)) + "</tr>\n";
  }
  return page + "</table></html>\n";
}

}  // namespace equitile
