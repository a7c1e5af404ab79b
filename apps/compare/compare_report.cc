#include "apps/compare/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "apps/cli/table.h"
#include "apps/compare/compare_html.h"
#include "equitile/base/duration.h"
#include "equitile/base/hash.h"
#include "equitile/io/frames/video_writer.h"
#include "equitile/quality/mean_interval.h"
#include "equitile/quality/video_comparison.h"

namespace equitile {
namespace {

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json IntervalJson(const std::optional<MeanInterval>& interval, size_t prompts) {
  if (!interval) return {{"mean", nullptr}, {"low", nullptr}, {"high", nullptr}, {"prompts", 0}};
  return {{"mean", interval->mean},
          {"low", OrNull(interval->low)},
          {"high", OrNull(interval->high)},
          {"prompts", prompts}};
}

// Of `prompts` values, none of which is above `most`.
std::string IntervalText(const MeanInterval& interval, size_t prompts, int decimals,
                         const char* unit, double most = HUGE_VAL) {
  constexpr size_t kFewest = 4;  // Student's t is 12.7 for two and 4.3 for three
  std::string text = fmt::format("{:.{}f}{}", interval.mean, decimals, unit);
  if (prompts < kFewest) {
    return text +
           fmt::format("  ({}: no interval)", Counted(static_cast<int64_t>(prompts), "prompt"));
  }
  return text + fmt::format("  (95 %: {:.{}f} to {:.{}f})", *interval.low, decimals,
                            std::min(*interval.high, most), decimals);
}

// Of latents: the same for the same bits.
std::string HashText(const MadeVideo& video) {
  return fmt::format("{:016x}", Fnv1a64(std::as_bytes(std::span(video.latents))));
}

}  // namespace

std::filesystem::path VideosOf(const std::filesystem::path& html) {
  return html.parent_path() / (html.stem().string() + "-videos");
}

CompareReport::CompareReport(const std::vector<CompareSide>& sides, ReportFiles files)
    : sides_(sides), files_(std::move(files)), made_(sides.size()) {
  for (size_t i = 1; i < sides.size(); ++i) comparisons_.push_back({&sides[i], {}, {}, {}});
}

void CompareReport::Add(const CompareSide& side, size_t task, MadeVideo video) {
  if (!files_.frames.empty()) SaveFrames(side, task, video);
  if (!files_.html.empty()) KeepVideo(side, task, video);
  made_[side.index] = std::move(video);
  if (!made_[0]) return;
  bool complete = true;
  for (size_t i = 1; i < sides_.size(); ++i) {
    if (made_[i] && !made_[i]->frames.empty()) {
      Compare(comparisons_[i - 1], task, *made_[i]);
      made_[i]->frames.clear();
    }
    complete = complete && made_[i];
  }
  if (complete) made_.assign(sides_.size(), std::nullopt);
}

void CompareReport::SaveFrames(const CompareSide& side, size_t task, const MadeVideo& video) const {
  const std::filesystem::path folder = files_.frames / side.name / fmt::format("{:04}", task + 1);
  std::filesystem::create_directories(folder);
  const auto writer = OpenVideo(folder / "%05d.png",
                                {.height = video.frames[0].height, .width = video.frames[0].width});
  for (const RgbImage& frame : video.frames) writer->Add(frame.pixels);
  writer->Finish();
}

// "b-0001.mp4"
std::string CompareReport::VideoName(const CompareSide& side, size_t task) const {
  return fmt::format("{}-{:04}.mp4", side.name, task + 1);
}

void CompareReport::KeepVideo(const CompareSide& side, size_t task, const MadeVideo& video) const {
  const GenerateRequest& request = side.request;
  const auto writer = OpenVideo(VideosOf(files_.html) / VideoName(side, task),
                                request.VideoOf(request.tasks[task]));
  for (const RgbImage& frame : video.frames) writer->Add(frame.pixels);
  writer->Finish();
}

void CompareReport::Compare(Comparison& comparison, size_t task, const MadeVideo& b) {
  const MadeVideo& a = *made_[0];
  VideoComparison frames;
  for (size_t f = 0; f < a.frames.size(); ++f) frames.Add(a.frames[f], b.frames[f]);
  const std::optional<double> psnr = frames.PsnrMean();
  if (psnr) comparison.psnrs.push_back(*psnr);
  comparison.ssims.push_back(frames.SsimMean());
  const double speed = a.seconds / b.seconds;
  comparison.speeds.push_back(speed);
  const CompareSide& side = *comparison.side;
  const GenerateTask& what = sides_[0].request.tasks[task];
  comparison.prompts.push_back({{"prompt", what.prompt},
                                {"seed_a", what.seed},
                                {"seed_b", side.request.tasks[task].seed},
                                {"psnr_mean", OrNull(psnr)},
                                {"psnr_min", OrNull(frames.PsnrMin())},
                                {"ssim_mean", frames.SsimMean()},
                                {"frames", frames.frames().size()},
                                {"identical_frames", frames.IdenticalFrames()},
                                {"seconds_a", a.seconds},
                                {"seconds_b", b.seconds},
                                {"speed", speed},
                                {"latents_a", HashText(a)},
                                {"latents_b", HashText(b)},
                                {"sparsity_a", a.sparsity},
                                {"sparsity_b", b.sparsity}});
  if (!files_.html.empty()) comparison.videos.push_back(frames);
  if (files_.json) return;
  fmt::print("{:>4}  PSNR {:>9}  SSIM {:.4f}  a {}  {} {}  speed {:.3f}  {}\n", task + 1,
             psnr ? fmt::format("{:.2f} dB", *psnr) : "identical", frames.SsimMean(),
             DurationText(a.seconds), side.name, DurationText(b.seconds), speed, what.prompt);
  std::fflush(stdout);
}

Json CompareReport::ToJson(const Comparison& comparison) const {
  std::optional<MeanInterval> psnr;
  if (!comparison.psnrs.empty()) psnr = MeanWithInterval(comparison.psnrs);
  return {{"b", comparison.side->flags},
          {"psnr", IntervalJson(psnr, comparison.psnrs.size())},
          {"ssim", IntervalJson(MeanWithInterval(comparison.ssims), comparison.ssims.size())},
          {"speed", IntervalJson(RatioWithInterval(comparison.speeds), comparison.speeds.size())},
          {"prompts", comparison.prompts}};
}

std::vector<std::pair<std::string, std::string>> CompareReport::Words(
    const Comparison& comparison) const {
  return {{"PSNR", comparison.psnrs.empty() ? "all frames are identical"
                                            : IntervalText(MeanWithInterval(comparison.psnrs),
                                                           comparison.psnrs.size(), 2, " dB")},
          {"SSIM",
           IntervalText(MeanWithInterval(comparison.ssims), comparison.ssims.size(), 4, "", 1.0)},
          {"speed", fmt::format("{}, {} over a",
                                IntervalText(RatioWithInterval(comparison.speeds),
                                             comparison.speeds.size(), 3, ""),
                                comparison.side->name)}};
}

void CompareReport::WritePage() const {
  const size_t tasks = sides_[0].request.tasks.size();
  ComparePage page{.title = fmt::format("{} of {}", Counted(std::ssize(sides_), "way"),
                                        Counted(static_cast<int64_t>(tasks), "prompt")),
                   .fps = sides_[0].request.config.fps};
  for (const CompareSide& side : sides_) page.facts.emplace_back(side.name, side.flags);
  for (const Comparison& comparison : comparisons_) {
    for (const auto& [name, text] : Words(comparison)) page.facts.emplace_back(name, text);
  }
  const std::filesystem::path folder = VideosOf(files_.html).filename();
  for (size_t task = 0; task < tasks; ++task) {
    PageRow row{
        .name = sides_[0].request.tasks[task].prompt, .frames = {}, .screens = {}, .curves = {}};
    for (int64_t f = 0; f < sides_[0].request.config.frames; ++f) row.frames.push_back(f);
    for (const CompareSide& side : sides_) {
      row.screens.push_back(
          {.label = side.name, .video = (folder / VideoName(side, task)).string()});
    }
    for (const Comparison& comparison : comparisons_) row.curves.push_back(comparison.videos[task]);
    page.rows.push_back(PageRowJson(row));
  }
  WriteTextFile(files_.html, ComparePageText(page));
}

void CompareReport::Finish() const {
  if (!files_.html.empty()) WritePage();
  Print();
}

void CompareReport::Print() const {
  if (!files_.json) {
    for (const Comparison& comparison : comparisons_) {
      if (comparisons_.size() > 1) {
        fmt::print("{}: {}\n", comparison.side->name, comparison.side->flags);
      }
      for (const auto& [name, text] : Words(comparison)) fmt::print("{:<6} {}\n", name, text);
    }
    return;
  }
  Json all = {{"a", sides_[0].flags}};
  if (comparisons_.size() == 1) {
    all.update(ToJson(comparisons_[0]));
  } else {
    all["comparisons"] = Json::array();
    for (const Comparison& comparison : comparisons_) {
      all["comparisons"].push_back(ToJson(comparison));
    }
  }
  PrintJson(all);
}

}  // namespace equitile
