#include "apps/inspect/pattern_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/cli/html.h"
#include "apps/cli/page_style.h"
#include "apps/cli/pattern_text.h"
#include "apps/inspect/pixel_text.h"

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

// Where everything of the picture is, in pixels: a title, numbers of heads, a row of cells per
// layer with its number, the modes' names; the ranges side by side.
struct PatternPlaces {
  static constexpr int64_t kCell = 20, kStep = kCell + 1, kEdge = 12;

  explicit PatternPlaces(const PatternFile& file)
      : layers(file.Layers()), heads(file.Heads()), ranges(std::ssize(file.ranges)) {
    legend = kEdge;
    for (const HeadMode mode : kHeadModes)
      legend += kStep + kEdge / 2 + text.Width(HeadModeName(mode)) + kEdge;
    // A few heads are narrower than what stands above them.
    across = std::max(heads * kStep, text.Width("sigma 0.0000 to 0.0000"));
  }

  int64_t Labels() const { return text.Width("layer 000") + kEdge / 2; }
  int64_t Left(int64_t range) const {
    return kEdge + Labels() + range * (across + kEdge + Labels());
  }
  int64_t HeadNumbersTop() const { return kEdge + text.Height() + kEdge; }
  int64_t Top(int64_t layer) const {
    return HeadNumbersTop() + text.Height() + kEdge / 2 + layer * kStep;
  }
  int64_t LegendTop() const { return Top(layers) + kEdge; }
  int64_t Height() const { return LegendTop() + kCell + kEdge; }
  int64_t Width() const { return std::max(Left(ranges - 1) + across + kEdge, legend); }

  PixelText text;
  int64_t layers, heads, ranges, across = 0, legend = 0;
};

// left: of the cells.
void PaintAxes(const PatternPlaces& places, int64_t left, RgbImage& image) {
  const PixelText text;
  const auto before_cells = [&](const std::string& label, int64_t y) {
    text.Draw(label, y, left - places.kEdge / 2 - text.Width(label), image);
  };
  before_cells("head", places.HeadNumbersTop());
  for (int64_t head = 0; head < places.heads; ++head) {
    const std::string number = fmt::format("{}", head);
    text.Draw(number, places.HeadNumbersTop(),
              left + head * places.kStep + (places.kCell - text.Width(number)) / 2, image);
  }
  for (int64_t layer = 0; layer < places.layers; ++layer)
    before_cells(fmt::format("{}{}", layer == 0 ? "layer " : "", layer),
                 places.Top(layer) + (places.kCell - text.Height()) / 2);
}

void PaintHead(const PatternHead& head, int64_t y, int64_t x, RgbImage& image) {
  constexpr int64_t kCell = PatternPlaces::kCell;
  const bool is_dark = head.pattern.mode == HeadMode::kSkip;
  const PixelText text{.color = is_dark ? Rgb{255, 255, 255} : Rgb{20, 24, 31}};
  const std::string sign(1, LookOf(head.pattern.mode).sign);
  FillBox(y, x, kCell, kCell, CellColor(head), image);
  text.Draw(sign, y + (kCell - text.Height()) / 2, x + (kCell - text.Width(sign)) / 2, image);
}

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
  const PatternPlaces places(file);
  RgbImage image;
  image.height = places.Height();
  image.width = places.Width();
  image.pixels.assign(static_cast<size_t>(image.height * image.width * 3), 255);
  const PixelText text;
  for (size_t i = 0; i < file.ranges.size(); ++i) {
    const PatternRange& range = file.ranges[i];
    const int64_t left = places.Left(static_cast<int64_t>(i));
    text.Draw(fmt::format("sigma {:g} to {:g}", range.high, range.low), places.kEdge, left, image);
    PaintAxes(places, left, image);
    for (int64_t layer = 0; layer < file.Layers(); ++layer) {
      const auto& heads = range.layers[static_cast<size_t>(layer)];
      for (int64_t head = 0; head < file.Heads(); ++head)
        PaintHead(heads[static_cast<size_t>(head)], places.Top(layer), left + head * places.kStep,
                  image);
    }
  }
  int64_t x = places.kEdge;
  for (const HeadMode mode : kHeadModes) {
    PaintHead({.pattern = {.mode = mode}}, places.LegendTop(), x, image);
    x += places.kStep + places.kEdge / 2;
    text.Draw(HeadModeName(mode), places.LegendTop() + (places.kCell - text.Height()) / 2, x,
              image);
    x += text.Width(HeadModeName(mode)) + places.kEdge;
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
