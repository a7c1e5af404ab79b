#include "apps/compare/compare_report.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "apps/cli/table.h"
#include "equitile/base/hash.h"
#include "equitile/io/video_writer.h"
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

std::string Words(const MeanInterval& interval, int decimals, const char* unit) {
  std::string text = fmt::format("{:.{}f}{}", interval.mean, decimals, unit);
  if (!interval.low) return text + "  (one prompt: no interval)";
  return text + fmt::format("  (95 %: {:.{}f} to {:.{}f})", *interval.low, decimals, *interval.high,
                            decimals);
}

// Of latents: the same for the same bits.
std::string HashText(const MadeVideo& video) {
  return fmt::format("{:016x}", Fnv1a64(std::as_bytes(std::span(video.latents))));
}

}  // namespace

CompareReport::CompareReport(const std::vector<CompareSide>& sides,
                             std::filesystem::path frames_folder, bool json)
    : sides_(sides), frames_folder_(std::move(frames_folder)), json_(json), made_(sides.size()) {
  for (size_t i = 1; i < sides.size(); ++i) comparisons_.push_back({&sides[i], {}, {}, {}});
}

void CompareReport::Add(const CompareSide& side, size_t task, MadeVideo video) {
  if (!frames_folder_.empty()) SaveFrames(side, task, video);
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
  const std::filesystem::path folder = frames_folder_ / side.name / fmt::format("{:04}", task + 1);
  std::filesystem::create_directories(folder);
  const auto writer = OpenVideo(folder / "%05d.png",
                                {.height = video.frames[0].height, .width = video.frames[0].width});
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
  if (json_) return;
  fmt::print("{:>4}  PSNR {:>9}  SSIM {:.4f}  a {:.2f} s  {} {:.2f} s  speed {:.3f}  {}\n",
             task + 1, psnr ? fmt::format("{:.2f} dB", *psnr) : "identical", frames.SsimMean(),
             a.seconds, side.name, b.seconds, speed, what.prompt);
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

void CompareReport::PrintWords(const Comparison& comparison) const {
  if (comparisons_.size() > 1) {
    fmt::print("{}: {}\n", comparison.side->name, comparison.side->flags);
  }
  fmt::print("PSNR   {}\n", comparison.psnrs.empty()
                                ? "all frames are identical"
                                : Words(MeanWithInterval(comparison.psnrs), 2, " dB"));
  fmt::print("SSIM   {}\n", Words(MeanWithInterval(comparison.ssims), 4, ""));
  fmt::print("speed  {}, {} over a\n", Words(RatioWithInterval(comparison.speeds), 3, ""),
             comparison.side->name);
}

void CompareReport::Print() const {
  if (!json_) {
    for (const Comparison& comparison : comparisons_) PrintWords(comparison);
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
