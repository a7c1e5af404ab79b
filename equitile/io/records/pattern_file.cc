#include "equitile/io/records/pattern_file.h"

#include <algorithm>

#include "equitile/io/records/token_json.h"

namespace equitile {
namespace {

constexpr int64_t kPatternVersion = 1, kWeightsVersion = 2;
constexpr double kMaxWeight = 1000;            // more is no budget
constexpr int64_t kMaxPatternCount = 1 << 16;  // layers, heads: far above any model
constexpr double kMaxPatternNumber = 1e300;

bool HasSize(HeadMode mode) {
  return mode == HeadMode::kDiagonal || mode == HeadMode::kMultiDiagonal;
}

Json HeadJson(const PatternHead& head) {
  Json json = {{"mode", HeadModeName(head.pattern.mode)}};
  if (HasSize(head.pattern.mode)) json["size"] = head.pattern.size;
  if (head.pattern.mode == HeadMode::kStripes) {
    json["columns"] = Json::array();
    for (const Range& column : head.pattern.columns)
      json["columns"].push_back({column.begin, column.end});
  }
  json["density"] = head.density;
  json["error"] = head.error;
  if (head.predict_mass) json["p"] = *head.predict_mass;
  if (head.observe_mass) json["theta"] = *head.observe_mass;
  return json;
}

Json RangeJson(const PatternRange& range) {
  Json layers = Json::array();
  for (const auto& heads : range.layers) {
    layers.push_back(Json::array());
    for (const PatternHead& head : heads) layers.back().push_back(HeadJson(head));
  }
  return {{"sigma", {range.low, range.high}}, {"layers", std::move(layers)}};
}

// Ranges go from high noise to low.
template <typename Range>
size_t RangeIn(const std::vector<Range>& ranges, double sigma) {
  const auto at = std::find_if(ranges.begin(), ranges.end() - 1,
                               [&](const Range& range) { return sigma > range.low; });
  return static_cast<size_t>(at - ranges.begin());
}

// --- Reading ---

std::optional<double> OptionalShare(const JsonValue& value, const char* key) {
  const auto share = value.Find(key);
  return share ? std::optional(share->Number(0, 1)) : std::nullopt;
}

std::map<std::string, double> NumbersFrom(const JsonValue& value) {
  std::map<std::string, double> numbers;
  for (const auto& item : value.Items()) {
    if (!item.value().is_number()) value.Fail("'{}' must be a number", item.key());
    numbers[item.key()] = item.value().get<double>();
  }
  return numbers;
}

HeadMode ModeFrom(const JsonValue& value) {
  try {
    return ParseHeadMode(value.Text());
  } catch (const InputError& error) {
    value.Fail("{}", error.what());
  }
}

std::vector<Range> ColumnsFrom(const JsonValue& value) {
  std::vector<Range> columns;
  for (int64_t i = 0; i < value.Size(); ++i) {
    const JsonValue column = value.At(i);
    column.Size(2);
    columns.push_back(
        {column.At(0).Integer(0, kMaxFileTokens), column.At(1).Integer(0, kMaxFileTokens)});
  }
  return columns;
}

PatternHead HeadFrom(const JsonValue& value, const TokenGrid& grid) {
  PatternHead head;
  HeadPattern& pattern = head.pattern;
  pattern.mode = ModeFrom(value["mode"]);
  if (HasSize(pattern.mode)) {
    value.CheckKeys({"mode", "size", "density", "error", "p", "theta"});
    pattern.size = value["size"].Number(0, kMaxPatternNumber);
  } else if (pattern.mode == HeadMode::kStripes) {
    value.CheckKeys({"mode", "columns", "density", "error", "p", "theta"});
    pattern.columns = ColumnsFrom(value["columns"]);
  } else {
    value.CheckKeys({"mode", "density", "error", "p", "theta"});
  }
  try {
    CheckHeadPattern(pattern, grid);
  } catch (const InputError& error) {
    value.Fail("{}", error.what());
  }
  head.density = value["density"].Number(0, 1);
  head.error = value["error"].Number(0, kMaxPatternNumber);
  head.predict_mass = OptionalShare(value, "p");
  head.observe_mass = OptionalShare(value, "theta");
  return head;
}

// The low end of a range that begins at `high`.
double LowFrom(const JsonValue& sigma, double high) {
  sigma.Size(2);
  const double low = sigma.At(0).Number(0, 1);
  if (sigma.At(1).Number(0, 1) != high)
    sigma.At(1).Fail("must be {}: ranges go from sigma 1 down to 0 without gaps", high);
  if (low >= high) sigma.Fail("[low, high] with low < high");
  return low;
}

// The `layers` of a range, as many as the model has.
JsonValue LayersFrom(const JsonValue& range, const JsonValue& root) {
  const JsonValue layers = range["layers"];
  layers.Size(root["layers"].Integer(1, kMaxPatternCount));
  return layers;
}

ErrorWeights WeightsFrom(const JsonValue& value, double high, const JsonValue& root) {
  value.CheckKeys({"sigma", "layers"});
  ErrorWeights weights{.low = LowFrom(value["sigma"], high), .high = high, .layers = {}};
  const JsonValue layers = LayersFrom(value, root);
  for (int64_t layer = 0; layer < layers.Size(); ++layer)
    weights.layers.push_back(layers.At(layer).Number(0, kMaxWeight));
  return weights;
}

PatternRange RangeFrom(const JsonValue& value, double high, const JsonValue& root,
                       const TokenGrid& grid) {
  value.CheckKeys({"sigma", "layers"});
  PatternRange range{.low = LowFrom(value["sigma"], high), .high = high, .layers = {}};
  const JsonValue layers = LayersFrom(value, root);
  for (int64_t layer = 0; layer < layers.Size(); ++layer) {
    const JsonValue heads = layers.At(layer);
    heads.Size(root["heads"].Integer(1, kMaxPatternCount));
    auto& row = range.layers.emplace_back();
    for (int64_t head = 0; head < heads.Size(); ++head)
      row.push_back(HeadFrom(heads.At(head), grid));
  }
  return range;
}

// Ranges of `from` down to sigma 0, each as `read` reads one that begins at `high`.
template <typename Read>
auto RangesFrom(const JsonValue& from, Read read) {
  std::vector<decltype(read(from, 1.0))> ranges;
  double high = 1;
  for (int64_t i = 0; i < from.Size(); ++i) {
    ranges.push_back(read(from.At(i), high));
    high = ranges.back().low;
  }
  if (ranges.empty() || high != 0) from.Fail("must reach down to sigma 0");
  return ranges;
}

void ReadCalibration(const JsonValue& value, PatternFile& file) {
  value.CheckKeys({"prompts", "seeds"});
  const JsonValue prompts = value["prompts"], seeds = value["seeds"];
  for (int64_t i = 0; i < prompts.Size(); ++i) file.prompts.push_back(prompts.At(i).Text());
  for (int64_t i = 0; i < seeds.Size(); ++i)
    file.seeds.push_back(seeds.At(i).Integer(0, INT64_MAX));
}

void ReadHeader(const JsonValue& root, PatternFile& file) {
  file.model = root["model"].Hash();
  file.grid = TokenGridFrom(root["grid"], root.Find("text"));
  file.grid.home = TokenOrderFrom(root["home_order"]);
  const JsonValue block = root["block"];
  file.block_tokens = block.Integer(kMinBlockTokens, kMaxBlockTokens);
  if (file.block_tokens % kStripTokens != 0) block.Fail("must be a multiple of {}", kStripTokens);
  ReadCalibration(root["calibration"], file);
  file.objective = root["objective"].Text();
  file.dials = NumbersFrom(root["dials"]);
  const JsonValue totals = root["totals"];
  totals.CheckKeys({"density", "predicted_speedup"});
  file.density = totals["density"].Number(0, 1);
  file.predicted_speedup = totals["predicted_speedup"].Number(0, kMaxPatternNumber);
  file.measured = NumbersFrom(root["measured"]);
}

std::string GridText(const TokenGrid& grid) {
  std::string text = fmt::format("{}x{}x{} tokens", grid.frames, grid.height, grid.width);
  if (grid.text_before + grid.text_after > 0)
    text += fmt::format(" and text of {} + {}", grid.text_before, grid.text_after);
  return text;
}

}  // namespace

size_t PatternFile::RangeAt(double sigma) const { return RangeIn(ranges, sigma); }

std::span<const PatternHead> PatternFile::HeadsAt(double sigma, int64_t layer) const {
  return ranges[RangeAt(sigma)].layers[static_cast<size_t>(layer)];
}

double PatternFile::ErrorWeightAt(double sigma, int64_t layer) const {
  if (error_weights.empty()) return 1;
  return error_weights[RangeIn(error_weights, sigma)].layers[static_cast<size_t>(layer)];
}

std::string PatternFileText(const PatternFile& file) {
  Json json = {
      {"version", file.error_weights.empty() ? kPatternVersion : kWeightsVersion},
      {"kind", "pattern"},
      {"model", HashText(file.model)},
      {"grid", ExtentsJson(file.grid)},
      {"text", TextJson(file.grid)},
      {"block", file.block_tokens},
      {"home_order", TokenOrderName(file.grid.home)},
      {"layers", file.Layers()},
      {"heads", file.Heads()},
      {"calibration", {{"prompts", file.prompts}, {"seeds", file.seeds}}},
      {"objective", file.objective},
      {"dials", file.dials},
      {"totals", {{"density", file.density}, {"predicted_speedup", file.predicted_speedup}}},
      {"measured", file.measured},
      {"ranges", Json::array()}};
  for (const PatternRange& range : file.ranges) json["ranges"].push_back(RangeJson(range));
  for (const ErrorWeights& weights : file.error_weights) {
    json["error_weights"].push_back(
        {{"sigma", {weights.low, weights.high}}, {"layers", weights.layers}});
  }
  return JsonText(json) + "\n";
}

PatternFile ParsePatternFile(std::string_view text, std::string_view name) {
  const Json document = ParseJson(text, name);
  const JsonValue root(document, name);
  if (root["kind"].Text() != "pattern") root["kind"].Fail("must be \"pattern\"");
  const int64_t version = root["version"].Integer(0, INT32_MAX);
  if (version != kPatternVersion && version != kWeightsVersion)
    root["version"].Fail("this program reads versions {} and {}", kPatternVersion, kWeightsVersion);
  const bool has_weights = version == kWeightsVersion;
  if (!has_weights && root.Find("error_weights"))
    root["error_weights"].Fail("is of version {}, the file says {}", kWeightsVersion, version);
  root.CheckKeys({"version", "kind", "model", "grid", "text", "block", "home_order", "layers",
                  "heads", "calibration", "objective", "dials", "totals", "measured", "ranges",
                  "error_weights"});
  PatternFile file;
  ReadHeader(root, file);
  file.ranges = RangesFrom(root["ranges"], [&](const JsonValue& value, double high) {
    return RangeFrom(value, high, root, file.grid);
  });
  if (has_weights) {
    file.error_weights = RangesFrom(
        root["error_weights"],
        [&](const JsonValue& value, double high) { return WeightsFrom(value, high, root); });
  }
  return file;
}

bool LooksLikePatternFile(std::string_view text) {
  const Json document = Json::parse(text, nullptr, false);
  return document.is_object() && document.value("kind", Json()) == "pattern";
}

void WritePatternFile(const std::filesystem::path& path, const PatternFile& file) {
  WriteTextFile(path, PatternFileText(file));
}

PatternFile ReadPatternFile(const std::filesystem::path& path) {
  return ParsePatternFile(ReadTextFile(path), path.string());
}

std::string CheckPatternFits(const PatternFile& file, const PatternUse& use,
                             std::string_view name) {
  if (file.Layers() != use.layers || file.Heads() != use.heads) {
    throw InputError("[io] {}: is for {} layers of {} heads, the model has {} of {}", name,
                     file.Layers(), file.Heads(), use.layers, use.heads);
  }
  if (file.model != use.model) {
    throw InputError("[io] {}: was made for model {}, this is {}; search again for this one", name,
                     HashText(file.model), HashText(use.model));
  }
  if (file.grid.home != use.grid.home) {
    throw InputError("[io] {}: was made with token order {}, this run has {}", name,
                     TokenOrderName(file.grid.home), TokenOrderName(use.grid.home));
  }
  const bool same_blocks = file.block_tokens == use.block_tokens;
  if (file.grid == use.grid && same_blocks) return "";
  const auto text = [&](const TokenGrid& grid, int64_t block_tokens) {
    return GridText(grid) + (same_blocks ? "" : fmt::format(" in blocks of {}", block_tokens));
  };
  return fmt::format(
      "{}: was made for {}, this is {}: windows follow the grid, its errors were measured there",
      name, text(file.grid, file.block_tokens), text(use.grid, use.block_tokens));
}

}  // namespace equitile
