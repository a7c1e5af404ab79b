// `equitile inspect pattern.json`: which mode every head has, what it costs and what it is known to
// harm.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "apps/cli/pattern_text.h"
#include "apps/cli/table.h"
#include "apps/inspect/inspect.h"
#include "apps/inspect/pattern_picture.h"
#include "equitile/base/duration.h"
#include "equitile/base/error.h"
#include "equitile/io/frames/png.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/pattern_file.h"

namespace equitile {
namespace {

std::string SigmaText(const PatternRange& range) {
  return fmt::format("{:g} to {:g}", range.high, range.low);
}

// Per range and mode: how many heads, how dense, how wrong.
Table ModeTable(const PatternFile& file) {
  Table table({{"sigma", file.ranges.size() > 1},
               {"mode"},
               {"heads"},
               {"density"},
               {"mean_error"},
               {"max_error"}});
  for (const PatternRange& range : file.ranges) {
    for (HeadMode mode : kHeadModes) {
      int64_t heads = 0;
      double density = 0, error = 0, most = 0;
      for (const auto& layer : range.layers) {
        for (const PatternHead& head : layer) {
          if (head.pattern.mode != mode) continue;
          ++heads;
          density += head.density;
          error += head.error;
          most = std::max(most, head.error);
        }
      }
      if (heads == 0) continue;
      const auto count = static_cast<double>(heads);
      table.Add({SigmaText(range), std::string(HeadModeName(mode)), heads, Cell(density / count, 4),
                 Cell(error / count, 5), Cell(most, 5)});
    }
  }
  return table;
}

// The heads of one layer, or of all.
Table HeadTable(const PatternFile& file, std::optional<int64_t> layer) {
  Table table({{"sigma", file.ranges.size() > 1},
               {"layer"},
               {"head"},
               {"mode"},
               {"size"},
               {"density"},
               {"error"},
               {"p"},
               {"theta"}});
  const auto mass = [](const std::optional<double>& value) {
    return value ? Cell(*value, 4) : Cell(Json(nullptr), "");
  };
  for (const PatternRange& range : file.ranges) {
    for (int64_t at = layer.value_or(0); at < (layer ? *layer + 1 : file.Layers()); ++at) {
      const auto& heads = range.layers[static_cast<size_t>(at)];
      for (size_t h = 0; h < heads.size(); ++h) {
        const PatternHead& head = heads[h];
        table.Add({SigmaText(range), at, static_cast<int64_t>(h),
                   std::string(HeadModeName(head.pattern.mode)), SizeText(head.pattern),
                   Cell(head.density, 4), Cell(head.error, 5), mass(head.predict_mass),
                   mass(head.observe_mass)});
      }
    }
  }
  return table;
}

Json Rows(const Table& table) {
  const Json rows = table.ToJson();
  return rows.is_array() ? rows : Json::array({rows});
}

Json WeightsJson(const PatternFile& file) {
  Json json = Json::array();
  for (const ErrorWeights& weights : file.error_weights)
    json.push_back({{"sigma", {weights.low, weights.high}}, {"layers", weights.layers}});
  return json;
}

Json Describe(const InspectOptions& options, const PatternFile& file) {
  const TokenGrid& grid = file.grid;
  return {{"file", options.path},
          {"kind", "pattern"},
          {"model", HashText(file.model)},
          {"layers", file.Layers()},
          {"heads", file.Heads()},
          {"grid", {grid.frames, grid.height, grid.width}},
          {"text", {{"before", grid.text_before}, {"after", grid.text_after}}},
          {"block", file.block_tokens},
          {"home_order", TokenOrderName(grid.home)},
          {"objective", file.objective},
          {"dials", file.dials},
          {"prompts", file.prompts.size()},
          {"seeds", file.seeds},
          {"density", file.density},
          {"predicted_speedup", file.predicted_speedup},
          {"measured", file.measured},
          {"error_weights", WeightsJson(file)},
          {"modes", Rows(ModeTable(file))},
          {"pattern", Rows(HeadTable(file, options.layer))}};
}

std::string NumbersText(const std::map<std::string, double>& numbers) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : numbers) {
    constexpr std::string_view kSeconds = "_seconds";
    parts.push_back(name.ends_with(kSeconds)
                        ? fmt::format("{} {}", name.substr(0, name.size() - kSeconds.size()),
                                      DurationText(value))
                        : fmt::format("{} {:g}", name, value));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

void Print(const InspectOptions& options, const PatternFile& file) {
  const Terminal terminal = Terminal::Of(stdout);
  const auto line = [&](std::string_view what, const std::string& text) {
    fmt::print("{} {}\n", terminal.Dim(fmt::format("{:<12}", what)), text);
  };
  const TokenGrid& grid = file.grid;
  line("pattern", options.path);
  line("model",
       fmt::format("{}: {} layers of {} heads", HashText(file.model), file.Layers(), file.Heads()));
  line("grid",
       fmt::format("{} frames of {} x {}, text {} before, {} after; blocks of {}, home order {}",
                   grid.frames, grid.height, grid.width, grid.text_before, grid.text_after,
                   file.block_tokens, TokenOrderName(grid.home)));
  line("made by", fmt::format("{}{}{}; {}, {}", file.objective, file.dials.empty() ? "" : ": ",
                              NumbersText(file.dials), Counted(std::ssize(file.prompts), "prompt"),
                              Counted(std::ssize(file.seeds), "seed")));
  line("density",
       fmt::format("{:.4f}, predicted speed-up {:.2f}", file.density, file.predicted_speedup));
  if (!file.measured.empty()) line("measured", NumbersText(file.measured));
  for (const ErrorWeights& weights : file.error_weights) {
    line("weights", fmt::format("of errors by layer, sigma {:g} to {:g}: {:g}", weights.high,
                                weights.low, fmt::join(weights.layers, ", ")));
  }
  fmt::print("\n{}", ModeTable(file).ToText(terminal));
  if (options.layer) {
    fmt::print("\n{}", HeadTable(file, options.layer).ToText(terminal));
    return;
  }
  for (const PatternRange& range : file.ranges)
    fmt::print("\nsigma {}; layers down, heads across\n{}", SigmaText(range),
               DrawPattern(range, terminal));
  fmt::print("\n{}", DrawModeLegend(terminal));
}

}  // namespace

void InspectPattern(const InspectOptions& options) {
  if (options.head || options.each_head || !options.mask.empty())
    throw InputError("--head, --each-head and --mask: {} is a pattern; --layer tells more about it",
                     options.path);
  const PatternFile file = ReadPatternFile(options.path);
  if (options.layer && *options.layer >= file.Layers()) {
    throw InputError("--layer {}: {} has {}, counted from 0", *options.layer, options.path,
                     Counted(file.Layers(), "layer"));
  }
  if (!options.png.empty()) WritePng(options.png, PaintPattern(file));
  if (!options.html.empty()) {
    const std::string name = std::filesystem::path(options.path).filename().string();
    WriteTextFile(options.html, PatternPage(name, file));
  }
  if (options.json) {
    PrintJson(Describe(options, file));
  } else {
    Print(options, file);
  }
}

}  // namespace equitile
