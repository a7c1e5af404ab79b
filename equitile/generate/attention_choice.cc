#include "equitile/generate/attention_choice.h"

#include <fmt/ranges.h>

#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/generate/pattern_advice.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/pattern_file.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/sparsity/published/static_masks.h"

namespace equitile {
namespace {

std::string CheckAttention(std::string_view what, std::string_view text) {
  static_cast<void>(what);  // the message names the flag itself
  return ParseAttention(text).Text();
}

// How many steps are dense unless somebody says otherwise.
constexpr std::string_view kUsualDenseSteps = "20%";

// Blocks of another grid would be other tokens, even of as many.
void CheckMaskGrid(const MaskTable& mask, const std::string& path, const GenerationConfig& config,
                   const WanConfig& model) {
  const TokenGrid video = VideoGrid(model, config);
  const std::optional<TokenGrid>& grid = mask.grid();
  const TokenOrder home = grid ? grid->home : TokenOrder::kFHW;
  if (home != video.home) {
    throw InputError("{}: was made with token order {}, this run has {}; --token-order {} fits it",
                     path, TokenOrderName(home), TokenOrderName(video.home), TokenOrderName(home));
  }
  if (!grid || *grid == video) return;
  if (grid->text_before != 0 || grid->text_after != 0) {
    throw InputError("{}: has text tokens; the self-attention of Wan has none", path);
  }
  throw InputError(
      "{}: is for a grid of {}x{}x{} tokens (frames, height, width), the video has "
      "{}x{}x{}",
      path, grid->frames, grid->height, grid->width, video.frames, video.height, video.width);
}

}  // namespace

FieldType AttentionType() {
  FieldType type = Text("KIND");
  type.check = CheckAttention;
  type.identity = [](std::string_view text) {
    AttentionSpec spec = ParseAttention(text);
    spec.file.clear();
    return spec.Text();
  };
  type.stored = [](std::string_view text) {
    AttentionSpec spec = ParseAttention(text);
    spec.file = InputPath("").Stored(spec.file);
    return spec.Text();
  };
  return type;
}

std::filesystem::path AttentionFile(const std::string& attention) {
  return ParseAttention(attention).file;
}

FieldType DenseStepsType() {
  FieldType type = Text("N|SHARE");
  type.check = [](std::string_view, std::string_view text) {
    if (text != "auto") ParseDenseSteps(text, 1);
    return std::string(text);
  };
  type.is_settled = [](std::string_view text) { return text != "auto"; };
  return type;
}

FieldType CacheType() {
  FieldType type = Text("KIND");
  type.check = [](std::string_view, std::string_view text) {
    const std::optional<double> bound = ParseCache(text);
    return bound ? fmt::format("easy:{}", *bound) : std::string("none");
  };
  return type;
}

namespace {

// For both passes, from files for one or two.
MaskTable ReadMasks(const AttentionSpec& spec, const GenerationConfig& config,
                    const WanConfig& model, uint64_t& hash) {
  const MaskTable table = MaskTable::Read(spec.file);
  const std::string& name = spec.file;
  const std::string &made_by = table.method(), text = spec.Text();
  if (spec.kind != AttentionKind::kMask && !made_by.empty() && !text.starts_with(made_by + ":")) {
    throw InputError("--attention {}: these masks are of {}; use {}:{}", text, made_by, made_by,
                     name);
  }
  hash = table.hash();
  MaskTable masks = table.ForBatch(config.Passes());
  const BlockMask& first = masks.First().blocks();
  const int64_t tokens = VideoTokens(model, config);
  if (first.lanes().heads != model.heads) {
    throw InputError("{}: has {} heads, the model {}", name, first.lanes().heads, model.heads);
  }
  if (first.grid().q_tokens != tokens || first.grid().kv_tokens != tokens) {
    throw InputError("{}: is for {} x {} tokens, the video has {}", name, first.grid().q_tokens,
                     first.grid().kv_tokens, tokens);
  }
  CheckMaskGrid(masks, name, config, model);
  return masks;
}

}  // namespace

namespace {

bool NeedsPattern(const AttentionSpec& spec) {
  return spec.kind == AttentionKind::kPattern || spec.kind == AttentionKind::kPatternPredict;
}

void Remark(std::string remark, ChosenSparsity& chosen) {
  if (!remark.empty()) chosen.remarks.push_back(std::move(remark));
}

// A dial without its value, or a value without its dial, is taken for a file.
void CheckFileIsThere(const AttentionSpec& spec) {
  const std::string_view dials = DialsOf(spec.kind);
  std::error_code ignored;
  if (dials.empty() || spec.file.empty() || std::filesystem::exists(spec.file, ignored)) return;
  throw InputError("--attention {}: there is no file {}; dials, each as NAME=VALUE, are {}",
                   spec.Text(), spec.file, dials);
}

// What leaves nothing out, "" where something may be.
std::string WhyItIsDense(const SparsityOptions& options, const SparsityUse& use) {
  const AttentionSpec& spec = options.attention;
  const int64_t steps = use.config.steps - (options.warm_up.dense_last_step ? 1 : 0);
  if (spec.kind == AttentionKind::kObserve && options.ObservedStep() + 1 >= steps) {
    return fmt::format("--attention {}: step {} of {} is observed, so that no step uses its masks",
                       spec.Text(), options.ObservedStep() + 1, use.config.steps);
  }
  if (spec.kind != AttentionKind::kSta || !spec.file.empty()) return "";
  const TokenGrid grid = VideoGrid(use.model, use.config);
  const SlidingTileOptions tiles = SlidingTilesOfDensity(grid, spec.density);
  const StaticMaskPlace place{.lanes = {.batch = 1, .heads = 1},
                              .grid = grid,
                              .block_tokens = options.GridFor(grid.Tokens()).block_tokens};
  if (SlidingTileMasks(place, tiles).blocks().Density() < 1) return "";
  return fmt::format(
      "--attention {}: windows of {} tiles of {} tokens (frames, height, width) see all of "
      "{}x{}x{} "
      "tokens: this is dense",
      spec.Text(), fmt::join(tiles.window, "x"), fmt::join(tiles.tile, "x"), grid.frames,
      grid.height, grid.width);
}

// attention: what the recipe says. Returns where it was.
std::filesystem::path ReadPattern(const SparsityUse& use, const std::string& attention,
                                  ChosenSparsity& chosen) {
  AttentionSpec& spec = chosen.options.attention;
  std::filesystem::path path = spec.file;
  if (path.empty()) {
    path = use.folder / "pattern.json";
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      throw InputError(
          "--attention {}: {} has no pattern.json; make one with `equitile search -m {} --prompts "
          "FILE -o {}`, or give a file, as in {}:FILE",
          spec.Text(), use.folder.string(), use.folder.string(), path.string(), spec.Text());
    }
  }
  const std::string text = ReadTextFile(path);
  auto file = std::make_shared<const PatternFile>(ParsePatternFile(text, path.string()));
  const TokenGrid grid = VideoGrid(use.model, use.config);
  Remark(CheckPatternFits(*file,
                          {.model = use.fingerprint,
                           .layers = use.model.layers,
                           .heads = use.model.heads,
                           .grid = grid,
                           .block_tokens = chosen.options.GridFor(grid.Tokens()).block_tokens},
                          path.string()),
         chosen);
  spec = ParseAttention(attention, !file->error_weights.empty());
  chosen.hash = Hasher().Add(std::string_view(text)).Digest();
  chosen.options.pattern = std::move(file);
  return path;
}

}  // namespace

ChosenSparsity ChooseSparsity(const Recipe& recipe, const SparsityUse& use) {
  const GenerationConfig& config = use.config;
  const WanConfig& model = use.model;
  ChosenSparsity chosen;
  SparsityOptions& options = chosen.options;
  options.attention = ParseAttention(recipe.Text("attention"));
  const bool is_auto = !recipe.IsSettled("dense_steps");
  const std::string dense = !is_auto                      ? recipe.Text("dense_steps")
                            : options.attention.WarmsUp() ? std::string(kUsualDenseSteps)
                                                          : "0";
  options.warm_up = {.dense_steps = ParseDenseSteps(dense, config.steps),
                     .dense_layers = recipe.Integer("dense_layers"),
                     .dense_last_step = recipe.IsOn("dense_last_step")};
  options.share_passes = recipe.IsOn("share_passes");
  options.cache_bound = ParseCache(recipe.Text("cache"));
  CheckFileIsThere(options.attention);
  if (options.attention.ReadsMasks()) {
    options.masks = ReadMasks(options.attention, config, model, chosen.hash);
  } else if (NeedsPattern(options.attention) || !options.attention.file.empty()) {
    const std::filesystem::path path = ReadPattern(use, recipe.Text("attention"), chosen);
    if (NeedsPattern(options.attention))
      Remark(WhyItSavesLittle(options, config, model, path.string()), chosen);
  }
  CheckSparsity(options, config.steps, model.layers);
  Remark(WhyItIsDense(options, use), chosen);
  return chosen;
}

}  // namespace equitile
