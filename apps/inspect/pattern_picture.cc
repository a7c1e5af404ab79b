#include "apps/inspect/pattern_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/cli/html.h"
#include "apps/cli/page_style.h"
#include "apps/cli/pattern_text.h"

namespace equitile {
namespace {

struct ModeLook {
  char sign;
  int terminal_color;            // of the 256-colour palette
  std::array<uint8_t, 3> color;  // the same, for pictures
};

// Full is what costs; the farther from red, the less is computed.
constexpr std::array<ModeLook, 6> kLooks = {{{'F', 167, {215, 95, 95}},
                                             {'-', 238, {68, 68, 68}},
                                             {'D', 68, {95, 135, 215}},
                                             {'M', 72, {95, 175, 135}},
                                             {'S', 179, {215, 175, 95}},
                                             {'o', 140, {175, 135, 215}}}};

const ModeLook& LookOf(HeadMode mode) { return kLooks[static_cast<size_t>(mode)]; }

std::string Sign(HeadMode mode, const Terminal& terminal) {
  const ModeLook& look = LookOf(mode);
  if (!terminal.color) return fmt::format("{} ", look.sign);
  return fmt::format("\x1b[48;5;{}m\x1b[38;5;231m{} \x1b[0m", look.terminal_color, look.sign);
}

// Light colours keep little, the full colour everything.
std::array<uint8_t, 3> CellColor(const PatternHead& head) {
  std::array<uint8_t, 3> color = LookOf(head.pattern.mode).color;
  if (head.pattern.mode == HeadMode::kSkip) return color;
  const double strength = 0.35 + 0.65 * std::clamp(head.density, 0.0, 1.0);
  for (uint8_t& channel : color)
    channel = static_cast<uint8_t>(std::lround(255 - strength * (255 - channel)));
  return color;
}

std::string HtmlCell(const PatternHead& head, size_t layer, size_t number) {
  const auto color = CellColor(head);
  const std::string size = SizeText(head.pattern);
  std::string told = fmt::format("layer {}, head {}: {}{}{}&#10;density {:.4f}, error {:.4g}",
                                 layer, number, HeadModeName(head.pattern.mode),
                                 size.empty() ? "" : ", ", size, head.density, head.error);
  if (head.predict_mass) told += fmt::format("&#10;p {:.4g}", *head.predict_mass);
  if (head.observe_mass) told += fmt::format("&#10;theta {:.4g}", *head.observe_mass);
  return fmt::format("<td style=\"background:#{:02x}{:02x}{:02x}\" title=\"{}\">{}</td>", color[0],
                     color[1], color[2], told, LookOf(head.pattern.mode).sign);
}

// After PageHead. Cells look the same by day and by night.
constexpr const char* kPatternStyle =
    R"html(section { overflow-x: auto; }
table { width: auto; border-collapse: separate; border-spacing: 2px; }
th, td { border: 0; padding: 0; text-align: center; font-size: 11px; }
th { padding-right: 8px; }
td { min-width: 20px; height: 20px; border-radius: 3px; color: #14181f; text-shadow: 0 0 3px #fff9; }
.key i { width: 18px; height: 18px; color: #fff; font: 11px/18px system-ui, sans-serif; text-align: center; }
</style>
</head>
<body>
<main>
)html";

}  // namespace

char ModeSign(HeadMode mode) { return LookOf(mode).sign; }

std::string DrawPattern(const PatternRange& range, const Terminal& terminal) {
  std::string text;
  for (size_t layer = 0; layer < range.layers.size(); ++layer) {
    text += terminal.Dim(fmt::format("{:>4} ", layer));
    for (const PatternHead& head : range.layers[layer]) text += Sign(head.pattern.mode, terminal);
    text += "\n";
  }
  return text;
}

std::string DrawModeLegend(const Terminal& terminal) {
  std::string text;
  for (HeadMode mode : kHeadModes)
    text +=
        fmt::format("{}{}{}", text.empty() ? "" : "  ", Sign(mode, terminal), HeadModeName(mode));
  return text + "\n";
}

RgbImage PaintPattern(const PatternFile& file) {
  constexpr int64_t kCell = 14, kLine = 1, kGap = 12;
  constexpr uint8_t kGray = 200;
  const int64_t step = kCell + kLine, across = file.Heads() * step + kLine;
  const auto ranges = std::ssize(file.ranges);
  RgbImage image;
  image.height = file.Layers() * step + kLine;
  image.width = ranges * (across + kGap) - kGap;
  image.pixels.assign(static_cast<size_t>(image.height * image.width * 3), kGray);
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      const int64_t inside = x % (across + kGap);
      uint8_t* pixel = &image.pixels[static_cast<size_t>((y * image.width + x) * 3)];
      if (inside >= across) std::fill_n(pixel, 3, 255);
      if (inside >= across || y % step < kLine || inside % step < kLine) continue;
      const PatternRange& range = file.ranges[static_cast<size_t>(x / (across + kGap))];
      const auto color = CellColor(
          range.layers[static_cast<size_t>(y / step)][static_cast<size_t>(inside / step)]);
      std::copy(color.begin(), color.end(), pixel);
    }
  }
  return image;
}

std::string PatternPage(const std::string& name, const PatternFile& file) {
  std::string page = PageHead("inspect") + kPatternStyle;
  page += fmt::format(
      "<h1>{}</h1><div class=\"soft\">{} layers of {} heads on {} frames of {} × {} · density "
      "{:.4f} · predicted speed-up {:.2f}</div>\n<p>",
      HtmlEscaped(name), file.Layers(), file.Heads(), file.grid.frames, file.grid.height,
      file.grid.width, file.density, file.predicted_speedup);
  for (HeadMode mode : kHeadModes) {
    const auto& color = LookOf(mode).color;
    page += fmt::format(
        "<span class=\"key\"><i style=\"background:#{:02x}{:02x}{:02x}\">{}</i>{}</span>", color[0],
        color[1], color[2], LookOf(mode).sign, HeadModeName(mode));
  }
  page +=
      "</p><p class=\"soft small\">Layers down, heads across; the stronger the colour, the denser. "
      "Point at a head for its size and error.</p>\n";
  for (const PatternRange& range : file.ranges) {
    page += fmt::format("<section><div class=\"top\"><h2>sigma {:g} to {:g}</h2></div><table>\n",
                        range.high, range.low);
    for (size_t layer = 0; layer < range.layers.size(); ++layer) {
      page += fmt::format("<tr><th>{}</th>", layer);
      for (size_t head = 0; head < range.layers[layer].size(); ++head)
        page += HtmlCell(range.layers[layer][head], layer, head);
      page += "</tr>\n";
    }
    page += "</table></section>\n";
  }
  return page + "</main>\n</body>\n</html>\n";
}

}  // namespace equitile
