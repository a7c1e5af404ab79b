// `equitile inspect mask.npy`: shape, density, how uneven heads and rows are, and a picture.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "apps/cli/table.h"
#include "apps/inspect/inspect.h"
#include "apps/inspect/mask_picture.h"
#include "equitile/base/error.h"
#include "equitile/io/records/mask_file.h"

namespace equitile {
namespace {

constexpr size_t kHeaviestRows = 5;
constexpr int64_t kMaxPictureColumns =
    64;  // fits beside a line of text, and a 64-block mask is shown as it is
constexpr int64_t kMaxPngPixels = 2048;    // a picture is reduced to this,
constexpr int64_t kSmallPngPixels = 512;   // or enlarged to this
constexpr int64_t kMaxSheetPixels = 4096;  // all heads side by side
constexpr int64_t kMaxSheetHeadPixels = 256;

struct Row {
  int64_t layer, lane, q_block, kept;
};

struct Summary {
  std::vector<double> lane_density;  // [layers * lanes]
  std::vector<Row> heaviest;
  int64_t kept = 0, blocks = 0, rows = 0, empty_rows = 0;

  double Density() const { return static_cast<double>(kept) / static_cast<double>(blocks); }
  double MeanRow() const { return static_cast<double>(kept) / static_cast<double>(rows); }
};

struct Spread {
  double min, median, max;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {values.front(), (values[(n - 1) / 2] + values[n / 2]) / 2, values.back()};
}

// Layers [first, first + count) of the file, those of all steps one after the other.
struct Selection {
  int64_t first, count;
};

Selection SelectLayers(const InspectOptions& options, const MaskFile& mask) {
  const auto layers = static_cast<int64_t>(mask.layers.size());
  if (!options.layer) return {0, layers};
  if (*options.layer >= layers) {
    const std::string steps =
        mask.steps > 0 ? fmt::format(" in {}", Counted(mask.steps, "step")) : "";
    throw InputError("--layer {}: {} has {}{}, counted from 0", *options.layer, options.path,
                     Counted(layers, "layer"), steps);
  }
  return {*options.layer, 1};
}

Summary Summarize(const MaskFile& mask, Selection selection) {
  Summary summary;
  const auto heavier = [](const Row& a, const Row& b) { return a.kept > b.kept; };
  for (int64_t layer = selection.first; layer < selection.first + selection.count; ++layer) {
    const BlockMask& blocks = mask.layers[static_cast<size_t>(layer)];
    const int64_t lane_blocks = blocks.QBlocks() * blocks.KvBlocks();
    for (int64_t lane = 0; lane < blocks.LaneCount(); ++lane) {
      const int64_t lane_kept = blocks.LaneKept(lane);
      summary.lane_density.push_back(static_cast<double>(lane_kept) /
                                     static_cast<double>(lane_blocks));
      summary.kept += lane_kept;
      summary.blocks += lane_blocks;
      for (int64_t q = 0; q < blocks.QBlocks(); ++q) {
        const Row row{layer, lane, q, blocks.RowCount(lane, q)};
        ++summary.rows;
        summary.empty_rows += row.kept == 0;
        if (summary.heaviest.size() == kHeaviestRows && row.kept <= summary.heaviest.back().kept)
          continue;
        auto& heaviest = summary.heaviest;  // equal rows stay in their order
        heaviest.insert(std::upper_bound(heaviest.begin(), heaviest.end(), row, heavier), row);
        if (heaviest.size() > kHeaviestRows) heaviest.pop_back();
      }
    }
  }
  return summary;
}

int64_t LayersOfStep(const MaskFile& mask) {
  return std::ssize(mask.layers) / std::max<int64_t>(mask.steps, 1);
}

Json Optional(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

Table HeaviestRows(const Summary& summary, const MaskFile& mask) {
  const Lanes& lanes = mask.lanes();
  const int64_t in_step = LayersOfStep(mask);
  Table table({{"step", mask.steps > 0},
               {"layer", mask.has_layer_axis},
               {"batch", lanes.batch > 1},
               {"head"},
               {"q_block"},
               {"kept"},
               {"of_mean"}});
  for (const Row& row : summary.heaviest) {
    const double of_mean =
        summary.kept == 0 ? 1.0 : static_cast<double>(row.kept) / summary.MeanRow();
    table.Add({row.layer / in_step, row.layer % in_step, lanes.BatchOf(row.lane),
               lanes.HeadOf(row.lane), row.q_block, row.kept, Cell(of_mean, 2)});
  }
  return table;
}

Json Describe(const InspectOptions& options, const MaskFile& mask, const Summary& summary) {
  const BlockGrid& grid = mask.layers.front().grid();
  const Spread heads = SpreadOf(summary.lane_density);
  Json json = {{"file", options.path},         {"kind", "mask"},
               {"layers", LayersOfStep(mask)}, {"selected_layer", Optional(options.layer)},
               {"batch", mask.lanes().batch},  {"heads", mask.lanes().heads},
               {"q_blocks", grid.QBlocks()},   {"kv_blocks", grid.KvBlocks()},
               {"block", grid.block_tokens},   {"q_tokens", grid.q_tokens},
               {"kv_tokens", grid.kv_tokens}};
  if (mask.steps > 0) json["steps"] = mask.steps;
  json["grid"] =
      mask.grid ? Json{mask.grid->frames, mask.grid->height, mask.grid->width} : Json(nullptr);
  json["text"] = mask.grid
                     ? Json{{"before", mask.grid->text_before}, {"after", mask.grid->text_after}}
                     : Json(nullptr);
  json["home_order"] = TokenOrderName(mask.home());
  json["orders"] = Json::array();
  for (TokenOrder order : mask.orders) json["orders"].push_back(TokenOrderName(order));
  json["layer"] = Optional(mask.layer);
  json["step"] = Optional(mask.step);
  json["kept_blocks"] = summary.kept;
  json["density"] = summary.Density();
  json["head_density"] = {{"min", heads.min}, {"median", heads.median}, {"max", heads.max}};
  json["densities"] = summary.lane_density;
  json["empty_rows"] = summary.empty_rows;
  const Json rows = HeaviestRows(summary, mask).ToJson();
  json["heaviest_rows"] = rows.is_array() ? rows : Json::array({rows});
  return json;
}

std::string OrdersText(const std::vector<TokenOrder>& orders) {
  std::map<TokenOrder, int64_t> lanes;
  for (TokenOrder order : orders) ++lanes[order];
  std::vector<std::string> parts;
  for (const auto& [order, count] : lanes)
    parts.push_back(fmt::format("{} ({})", TokenOrderName(order), count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void PrintSummary(const InspectOptions& options, const MaskFile& mask, const Summary& summary) {
  const BlockGrid& grid = mask.layers.front().grid();
  const Lanes& lanes = mask.lanes();
  const Terminal terminal = Terminal::Of(stdout);
  const auto line = [&](std::string_view what, const std::string& text) {
    fmt::print("{} {}\n", terminal.Dim(fmt::format("{:<12}", what)), text);
  };

  line("mask", options.path);
  std::string shape = fmt::format("{} heads", lanes.heads);
  if (lanes.batch > 1) shape = fmt::format("batch {} x {}", lanes.batch, shape);
  if (mask.has_layer_axis) {
    shape = fmt::format("{} x {}", Counted(LayersOfStep(mask), "layer"), shape);
  }
  if (mask.steps > 0) shape = fmt::format("{} x {}", Counted(mask.steps, "step"), shape);
  line("shape", fmt::format("{}, {} x {} blocks of {} tokens", shape, grid.QBlocks(),
                            grid.KvBlocks(), grid.block_tokens));
  line("tokens", fmt::format("{} x {}", grid.q_tokens, grid.kv_tokens));
  if (mask.grid) {
    line("grid", fmt::format("{} frames of {} x {}, text {} before, {} after", mask.grid->frames,
                             mask.grid->height, mask.grid->width, mask.grid->text_before,
                             mask.grid->text_after));
  }
  if (mask.home() != TokenOrder::kFHW) line("home order", TokenOrderName(mask.home()));
  line("orders", OrdersText(mask.orders));
  if (options.layer) line("layer", fmt::format("{}", *options.layer));

  const Spread heads = SpreadOf(summary.lane_density);
  line("density",
       fmt::format("{:.4f} ({} of {} blocks)", summary.Density(), summary.kept, summary.blocks));
  line("per head",
       fmt::format("min {:.4f}, median {:.4f}, max {:.4f}", heads.min, heads.median, heads.max));
  if (summary.kept > 0)
    line("imbalance",
         fmt::format("the heaviest head is {:.2f} x the mean", heads.max / summary.Density()));
  line("empty rows", fmt::format("{} of {}", summary.empty_rows, summary.rows));
  fmt::print("\nheaviest rows\n{}", HeaviestRows(summary, mask).ToText(terminal));
}

// The lanes of the selected layers: of one head, or of all.
std::vector<MaskLane> LanesToDraw(const MaskFile& mask, Selection selection,
                                  std::optional<int64_t> head) {
  std::vector<MaskLane> lanes;
  for (int64_t layer = selection.first; layer < selection.first + selection.count; ++layer) {
    for (int64_t lane = 0; lane < mask.lanes().Count(); ++lane) {
      if (head && mask.lanes().HeadOf(lane) != *head) continue;
      lanes.push_back({&mask.layers[static_cast<size_t>(layer)], lane});
    }
  }
  return lanes;
}

GrayImage Paint(const InspectOptions& options, const MaskFile& mask, Selection selection) {
  const auto paint = [&](std::optional<int64_t> head, int64_t max_pixels, int64_t small_pixels) {
    const std::vector<MaskLane> lanes = LanesToDraw(mask, selection, head);
    return PaintPicture(MeanPicture(lanes, max_pixels, max_pixels), small_pixels);
  };
  if (!options.each_head) return paint(options.head, kMaxPngPixels, kSmallPngPixels);
  const int64_t heads = mask.lanes().heads;
  const int64_t pixels =
      std::clamp<int64_t>(kMaxSheetPixels / ContactSheetColumns(heads), 1, kMaxSheetHeadPixels);
  std::vector<GrayImage> pictures;
  for (int64_t head = 0; head < heads; ++head) pictures.push_back(paint(head, pixels, pixels));
  return ContactSheet(pictures);
}

void PrintPicture(const InspectOptions& options, const MaskFile& mask, Selection selection) {
  const Terminal terminal = Terminal::Of(stdout);
  const int64_t columns = std::min(kMaxPictureColumns, terminal.columns);
  const std::vector<MaskLane> lanes = LanesToDraw(mask, selection, options.head);
  const std::string what =
      options.head ? fmt::format("head {}", *options.head) : "mean of all heads";
  fmt::print("\n{}; queries down, keys across\n{}", what,
             DrawPicture(MeanPicture(lanes, kMaxPictureColumns, columns), terminal));
}

}  // namespace

void InspectMask(const InspectOptions& options) {
  if (options.each_head && (options.png.empty() || options.head)) {
    throw InputError("--each-head: needs --png, and no --head");
  }
  const MaskFile mask = ReadMaskFile(options.path);
  const Selection selection = SelectLayers(options, mask);
  if (options.head && *options.head >= mask.lanes().heads) {
    throw InputError("--head {}: {} has {} heads, counted from 0", *options.head, options.path,
                     mask.lanes().heads);
  }
  const Summary summary = Summarize(mask, selection);
  if (!options.png.empty()) WritePng(options.png, Paint(options, mask, selection));
  if (options.json) {
    PrintJson(Describe(options, mask, summary));
    return;
  }
  PrintSummary(options, mask, summary);
  PrintPicture(options, mask, selection);
}

}  // namespace equitile
