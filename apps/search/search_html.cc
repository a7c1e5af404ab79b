#include "apps/search/search_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/cli/html.h"
#include "apps/cli/page_style.h"
#include "apps/cli/pattern_text.h"
#include "apps/plan/plan_run.h"
#include "apps/search/search_html_template.h"
#include "equitile/base/base64.h"

namespace equitile {
namespace {

constexpr size_t kCurvePoints = 400;  // as many as a chart can show
constexpr int64_t kPlannedLayers = 8;

Json HeadJson(const PatternHead& head) {
  Json json = {{"mode", HeadModeName(head.pattern.mode)},
               {"size", SizeText(head.pattern)},
               {"density", head.density},
               {"error", head.error}};
  if (head.predict_mass) json["p"] = *head.predict_mass;
  if (head.observe_mass) json["theta"] = *head.observe_mass;
  return json;
}

Json RangesJson(const PatternFile& file) {
  Json ranges = Json::array();
  for (const PatternRange& range : file.ranges) {
    Json layers = Json::array();
    for (const auto& layer : range.layers) {
      Json& heads = layers.emplace_back(Json::array());
      for (const PatternHead& head : layer) heads.push_back(HeadJson(head));
    }
    ranges.push_back({{"low", range.low}, {"high", range.high}, {"layers", std::move(layers)}});
  }
  return ranges;
}

Json CurveJson(const std::vector<CurvePoint>& curve) {
  Json points = Json::array();
  const size_t stride = std::max<size_t>(1, curve.size() / kCurvePoints);
  for (size_t i = 0; i < curve.size(); ++i) {
    if (i % stride != 0 && i + 1 != curve.size()) continue;
    points.push_back({curve[i].density, curve[i].error, curve[i].speedup});
  }
  return points;
}

Json CandidatesJson(const std::vector<SearchCandidate>& candidates) {
  Json list = Json::array();
  for (const SearchCandidate& candidate : candidates) {
    list.push_back({{"name", candidate.name},
                    {"density", candidate.density},
                    {"speedup", candidate.speedup},
                    {"velocity_error", candidate.velocity_error},
                    {"psnr", candidate.psnr ? Json(*candidate.psnr) : Json(nullptr)}});
  }
  return list;
}

// --- Attention maps ---

struct HeadPlace {
  size_t layer = 0, head = 0;
};

// Of every mode the head that it costs the least: there the mode is what it is meant to be.
std::map<HeadMode, HeadPlace> TypicalHeads(const PatternRange& range) {
  std::map<HeadMode, HeadPlace> typical;
  const auto error_at = [&](const HeadPlace& at) { return range.layers[at.layer][at.head].error; };
  for (size_t layer = 0; layer < range.layers.size(); ++layer) {
    for (size_t head = 0; head < range.layers[layer].size(); ++head) {
      const HeadPlace here = {layer, head};
      const auto [known, is_new] =
          typical.try_emplace(range.layers[layer][head].pattern.mode, here);
      if (!is_new && error_at(here) < error_at(known->second)) known->second = here;
    }
  }
  return typical;
}

// The root of shares, so that faint parts show; the brightest cells are cut off.
std::string MapText(std::span<const uint64_t> sums) {
  std::vector<uint64_t> sorted(sums.begin(), sums.end());
  std::sort(sorted.begin(), sorted.end());
  const auto top =
      static_cast<double>(std::max<uint64_t>(1, sorted[(sorted.size() - 1) * 995 / 1000]));
  std::vector<uint8_t> cells;
  for (uint64_t sum : sums) {
    const double share = std::min(1.0, static_cast<double>(sum) / top);
    cells.push_back(static_cast<uint8_t>(std::lround(255 * std::sqrt(share))));
  }
  return Base64(cells);
}

// [cells][cells] which part of the pairs of tokens of two cells, in home order, a pattern keeps; by
// some tokens of each cell.
std::string CoverText(const HeadPattern& pattern, const PatternFile& file, int64_t cells) {
  constexpr int64_t kTokens = 8;  // of a cell
  const LaneMasks masks = MakePatternMasks({&pattern, 1}, 1, file.grid, file.block_tokens);
  const TokenOrder order = masks.orders().empty() ? file.grid.home : masks.orders()[0];
  const std::vector<int32_t> token_at = TokenAtPosition(file.grid, order);
  std::vector<int64_t> block_of(token_at.size());
  for (size_t position = 0; position < token_at.size(); ++position) {
    block_of[static_cast<size_t>(token_at[position])] =
        static_cast<int64_t>(position) / file.block_tokens;
  }
  const int64_t blocks = masks.blocks().KvBlocks();
  const auto block_at = [&](int64_t cell, int64_t i) {
    const int64_t begin = CeilDiv(cell * blocks, cells) * file.block_tokens;
    const int64_t end =
        std::min(CeilDiv((cell + 1) * blocks, cells) * file.block_tokens, file.grid.Tokens());
    return block_of[static_cast<size_t>(begin + i * (end - begin) / kTokens)];
  };
  std::vector<uint8_t> cover;
  for (int64_t q = 0; q < cells; ++q) {
    for (int64_t k = 0; k < cells; ++k) {
      int64_t kept = 0;
      for (int64_t i = 0; i < kTokens; ++i) {
        for (int64_t j = 0; j < kTokens; ++j)
          kept += masks.blocks().Get(0, block_at(q, i), block_at(k, j)) ? 1 : 0;
      }
      cover.push_back(static_cast<uint8_t>(255 * kept / (kTokens * kTokens)));
    }
  }
  return Base64(cover);
}

Json MapsJson(const SearchOutcome& outcome) {
  Json maps = Json::array();
  const PatternFile& file = outcome.file;
  const PatternRange& range = file.ranges[file.ranges.size() / 2];
  const int64_t cells = outcome.maps.cells();
  for (const auto& [mode, at] : TypicalHeads(range)) {
    const PatternHead& head = range.layers[at.layer][at.head];
    Json json = HeadJson(head);
    json["layer"] = at.layer;
    json["head"] = at.head;
    json["cells"] = cells;
    json["map"] =
        MapText(outcome.maps.Of(static_cast<int64_t>(at.layer), static_cast<int64_t>(at.head)));
    json["cover"] = CoverText(head.pattern, file, cells);
    maps.push_back(std::move(json));
  }
  return maps;
}

// --- Videos ---

// Small differences are what one looks for; the page says by how much they are enlarged.
RgbImage Difference(const RgbImage& a, const RgbImage& b) {
  constexpr int kGain = 8;
  RgbImage image = a;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    image.pixels[i] =
        static_cast<uint8_t>(std::min(255, kGain * std::abs(int{a.pixels[i]} - b.pixels[i])));
  }
  return image;
}

Json FramesJson(const SearchOutcome& outcome) {
  Json frames = Json::array();
  for (const FrameSample& sample : outcome.frames) {
    frames.push_back({{"frame", sample.frame},
                      {"dense", PictureText(sample.dense)},
                      {"sparse", PictureText(sample.sparse)},
                      {"difference", PictureText(Difference(sample.dense, sample.sparse))}});
  }
  return frames;
}

Json VideosJson(const SearchPageFacts& facts) {
  Json videos = Json::array();
  const auto add = [&](const ValidationResult& result, size_t i, const GenerateTask& task,
                       const std::string& group) {
    videos.push_back({{"group", group},
                      {"prompt", task.prompt},
                      {"seed", task.seed},
                      {"psnr", result.psnr[i] ? Json(*result.psnr[i]) : Json(nullptr)},
                      {"ssim", result.ssim[i]},
                      {"density", result.density[i]},
                      {"speedup", result.speed[i]}});
  };
  const SearchOutcome& outcome = facts.outcome;
  const std::vector<GenerateTask>& others = facts.options.validation;
  for (size_t i = 0; i < outcome.validation.psnr.size(); ++i) {
    if (i < others.size()) {
      add(outcome.validation, i, others[i], "other prompts");
    } else {
      add(outcome.validation, i, facts.request.tasks[i - others.size()], "calibration's own");
    }
  }
  const SearchOptions::Size& size = facts.options.other_size;
  for (size_t i = 0; i < outcome.other_size.psnr.size(); ++i) {
    add(outcome.other_size, i, others[i],
        fmt::format("{} frames of {}x{}", size.frames, size.width, size.height));
  }
  return videos;
}

// --- The plan on ranks ---

std::vector<MaskReport> PlannedLayers(const SearchPageFacts& facts, const PlanOptions& options) {
  const PatternFile& file = facts.outcome.file;
  const PatternRange& range = file.ranges[file.ranges.size() / 2];
  const std::vector<PlannerSpec> specs = ParsePlanners("all", facts.ranks);
  const int64_t shown = std::min(kPlannedLayers, file.Layers());
  std::vector<MaskReport> layers;
  for (int64_t i = 0; i < shown; ++i) {
    const int64_t layer = i * file.Layers() / shown;
    std::vector<HeadPattern> heads;
    for (const PatternHead& head : range.layers[static_cast<size_t>(layer)])
      heads.push_back(head.pattern);
    const LaneMasks masks =
        MakePatternMasks(heads, facts.request.config.Passes(), file.grid, file.block_tokens);
    layers.push_back({.source = facts.name,
                      .layer = layer,
                      .mask = masks.blocks(),
                      .plans = ReportPlanners(specs, masks, options)});
  }
  return layers;
}

Json WorkJson(const MaskReport& layer) {
  Json plans = Json::array();
  for (const PlanReport& report : layer.plans) {
    plans.push_back({{"planner", report.planner},
                     {"chosen", report.chosen},
                     {"rho", report.rho},
                     {"seconds", report.prediction.seconds},
                     {"work", report.work_per_rank}});
  }
  return {{"layer", *layer.layer}, {"plans", std::move(plans)}};
}

Json PlanJson(const SearchPageFacts& facts) {
  PlanOptions options;
  options.ranks = facts.ranks;
  options.cluster.wire.head_dim = facts.request.transformer.head_dim;
  const PatternFile& file = facts.outcome.file;
  const BlockGrid grid = {.q_tokens = file.grid.Tokens(),
                          .kv_tokens = file.grid.Tokens(),
                          .block_tokens = file.block_tokens};
  if (facts.outcome.machine) ApplyMachine(*facts.outcome.machine, grid, options);
  const std::vector<MaskReport> layers = PlannedLayers(facts, options);
  Json planners = Json::array();
  for (const PlannerSummary& summary : SummarizeLayers(layers)) {
    planners.push_back({{"planner", summary.planner},
                        {"rho_mean", summary.rho_mean},
                        {"rho_max", summary.rho_max},
                        {"bytes_max", summary.bytes_max},
                        {"seconds", summary.predicted_seconds}});
  }
  Json work = Json::array();
  for (const MaskReport& layer : layers) work.push_back(WorkJson(layer));
  return {{"ranks", facts.ranks}, {"planners", std::move(planners)}, {"layers", std::move(work)}};
}

const char* StepRangesName(StepRangesKind kind) {
  constexpr const char* kNames[] = {"auto", "1", "each"};
  return kNames[static_cast<size_t>(kind)];
}

Json FactsJson(const SearchPageFacts& facts) {
  const PatternFile& file = facts.outcome.file;
  const PatternChoice& choice = facts.outcome.choice;
  const GenerationConfig& config = facts.request.config;
  return {{"name", facts.name},
          {"model", facts.request.recipe.Text("model")},
          {"objective", file.objective},
          {"width", config.width},
          {"height", config.height},
          {"frames", config.frames},
          {"steps", config.steps},
          {"tokens", file.grid.Tokens()},
          {"prompts", file.prompts},
          {"step_ranges", StepRangesName(facts.options.choice.step_ranges)},
          {"density", file.density},
          {"predicted_speedup", file.predicted_speedup},
          {"error", choice.error},
          {"error_deviation", choice.error_deviation},
          {"step_agreement", choice.step_agreement},
          {"prompt_agreement", choice.prompt_agreement},
          {"seconds", facts.outcome.seconds},
          {"dense_seconds", facts.outcome.dense_seconds},
          {"shown_prompt", facts.outcome.frames_of},
          {"choice_videos", facts.options.choosing.size()},
          {"dials", file.dials},
          {"measured", file.measured}};
}

}  // namespace

std::string SearchPage(const SearchPageFacts& facts) {
  const Json data = {{"facts", FactsJson(facts)},
                     {"ranges", RangesJson(facts.outcome.file)},
                     {"curve", CurveJson(facts.outcome.choice.curve)},
                     {"candidates", CandidatesJson(facts.outcome.candidates)},
                     {"maps", MapsJson(facts.outcome)},
                     {"frames", FramesJson(facts.outcome)},
                     {"videos", VideosJson(facts)},
                     {"plan", PlanJson(facts)}};
  return PageHead("search") + kSearchPageBody + ScriptText(data) + kSearchPageTail;
}

}  // namespace equitile
