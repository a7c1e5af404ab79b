// `equitile search`: calibration -> pattern file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "apps/cli/table.h"
#include "apps/generate/recipe_flags.h"
#include "apps/search/search_flags.h"
#include "apps/search/search_html.h"
#include "equitile/base/error.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/io/atomic_write.h"
#include "equitile/quality/mean_interval.h"
#include "equitile/search/pattern_search.h"
#include "equitile/search/search_costs.h"
#include "equitile/search/trials/trial_recorder.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile search --prompts prompts.txt -o pattern.json\n"
    "  equitile search --prompts prompts.txt --speedup 1.3 --validate 12 -o fast.json\n"
    "  equitile search --prompts prompts.txt --objective paper --epsilon 0.1 -o paper.json\n"
    "  equitile search --prompts prompts.txt --objective static --density 0.3 -o masks\n"
    "  mpirun -n 4 equitile search -m Wan2.1-T2V-1.3B-Diffusers --prompts p.txt -o p.json "
    "--resume\n"
    "  equitile generate -p \"a red circle\" --attention pattern:pattern.json -o circle.mp4";

constexpr double kMega = 1e6;

void CheckMemory(const SearchBytes& bytes) {
  Remark(fmt::format(
      "memory of a rank beside the weights: {:.0f} MB of activations, {:.0f} MB of "
      "lanes, {:.0f} MB of results",
      static_cast<double>(bytes.activations) / kMega, static_cast<double>(bytes.lanes) / kMega,
      static_cast<double>(bytes.table) / kMega));
  if (bytes.Total() <= AvailableBytes()) return;
  throw InputError(
      "a search of these prompts needs {:.1f} GB of memory, {:.1f} GB are free; use "
      "fewer prompts (--count) or a smaller video",
      static_cast<double>(bytes.Total()) / 1e9, static_cast<double>(AvailableBytes()) / 1e9);
}

// Heads of all ranges.
std::map<std::string, int64_t> CountModes(const PatternFile& file) {
  std::map<std::string, int64_t> modes;
  for (const PatternRange& range : file.ranges) {
    for (const auto& layer : range.layers) {
      for (const PatternHead& head : layer) ++modes[std::string(HeadModeName(head.pattern.mode))];
    }
  }
  return modes;
}

void PrintMeasured(const std::map<std::string, double>& measured) {
  if (!measured.contains("psnr")) return;
  fmt::print(
      "  {} of other prompts: PSNR {:.2f} dB, SSIM {:.4f}, speed-up {:.2f}; of its own "
      "{:.2f} dB\n",
      Counted(std::llround(measured.at("videos")), "video"), measured.at("psnr"),
      measured.at("ssim"), measured.at("speedup"), measured.at("calibration_psnr"));
  if (!measured.contains("other_psnr")) return;
  fmt::print(
      "  {:.0f} of them as {:.0f} frames of {:.0f}x{:.0f}: PSNR {:.2f} dB, speed-up {:.2f}\n",
      measured.at("other_videos"), measured.at("other_frames"), measured.at("other_width"),
      measured.at("other_height"), measured.at("other_psnr"), measured.at("other_speedup"));
}

void PrintSummary(const SearchFlags& flags, const SearchOutcome& outcome) {
  const PatternFile& file = outcome.file;
  const PatternChoice& choice = outcome.choice;
  fmt::print("{}: {}, density {:.3f}, error {:.4f} +- {:.4f}, predicted speed-up {:.2f}\n",
             flags.output, file.objective, file.density, choice.error, 2 * choice.error_deviation,
             file.predicted_speedup);
  std::string modes;
  for (const auto& [mode, count] : CountModes(file))
    modes += fmt::format("{}{} {}", modes.empty() ? "" : ", ", count, mode);
  fmt::print("  heads: {}\n  sigma:", modes);
  for (const PatternRange& range : file.ranges) fmt::print(" {:.3f}-{:.3f}", range.high, range.low);
  fmt::print(
      "\n  one step alone would choose the same mode for {:.0f} % of the heads, one prompt "
      "for {:.0f} %\n",
      100 * choice.step_agreement, 100 * choice.prompt_agreement);
  for (const SearchCandidate& candidate : outcome.candidates) {
    fmt::print("  {}{}: density {:.3f}, error of the velocity {:.5f}{}\n", candidate.name,
               &candidate == outcome.candidates.data() ? " (chosen)" : "", candidate.density,
               candidate.velocity_error,
               candidate.psnr ? fmt::format(", videos {:.2f} dB", *candidate.psnr) : "");
  }
  for (const ErrorWeights& weights : file.error_weights)
    fmt::print("  errors of layers weigh {:g}\n", fmt::join(weights.layers, ", "));
  PrintMeasured(file.measured);
  if (outcome.dense_seconds > 0) {
    fmt::print("  searched on {} in {:.0f} s, {:.1f} times their dense steps\n",
               Counted(std::ssize(file.prompts), "prompt"), outcome.seconds,
               outcome.seconds / outcome.dense_seconds);
  }
}

Json SummaryJson(const SearchFlags& flags, const SearchOutcome& outcome) {
  const PatternChoice& choice = outcome.choice;
  Json curve = Json::array();
  for (const CurvePoint& point : choice.curve) {
    curve.push_back({{"error", point.error},
                     {"density", point.density},
                     {"seconds", point.seconds},
                     {"speedup", point.speedup}});
  }
  Json candidates = Json::array();
  for (const SearchCandidate& candidate : outcome.candidates) {
    candidates.push_back({{"name", candidate.name},
                          {"density", candidate.density},
                          {"predicted_speedup", candidate.speedup},
                          {"velocity_error", candidate.velocity_error},
                          {"psnr", candidate.psnr ? Json(*candidate.psnr) : Json(nullptr)}});
  }
  Json layers = Json::array();
  for (size_t i = 0; i < outcome.layers.size(); ++i) {
    layers.push_back({{"velocity_error", outcome.layers[i].velocity_error},
                      {"tried_errors", kTriedErrors},
                      {"densities", outcome.layers[i].densities},
                      {"weight", outcome.file.error_weights.front().layers[i]}});
  }
  return {{"output", flags.output},
          {"objective", outcome.file.objective},
          {"density", outcome.file.density},
          {"error", choice.error},
          {"error_deviation", choice.error_deviation},
          {"predicted_speedup", outcome.file.predicted_speedup},
          {"modes", CountModes(outcome.file)},
          {"ranges", outcome.file.ranges.size()},
          {"step_agreement", choice.step_agreement},
          {"prompt_agreement", choice.prompt_agreement},
          {"seconds", outcome.seconds},
          {"dense_seconds", outcome.dense_seconds},
          {"candidates", std::move(candidates)},
          {"layers", std::move(layers)},
          {"measured", outcome.file.measured},
          {"curve", std::move(curve)}};
}

double MeanOf(std::span<const double> values) { return MeanWithInterval(values).mean; }

void NoteOtherSize(const SearchOptions& options, const ValidationResult& result,
                   std::map<std::string, double>& measured) {
  if (result.psnr.empty()) return;
  measured["other_videos"] = static_cast<double>(result.psnr.size());
  measured["other_width"] = static_cast<double>(options.other_size.width);
  measured["other_height"] = static_cast<double>(options.other_size.height);
  measured["other_frames"] = static_cast<double>(options.other_size.frames);
  measured["other_psnr"] = result.MeanPsnr();
  measured["other_ssim"] = MeanOf(result.ssim);
  measured["other_speedup"] = RatioWithInterval(result.speed).mean;
}

// What the videos have shown goes into the file.
void NoteValidation(const SearchOptions& options, SearchOutcome& outcome) {
  const ValidationResult& result = outcome.validation;
  if (result.psnr.empty()) return;
  const size_t videos = result.psnr.size() - outcome.calibration_videos;
  const double psnr = result.MeanPsnr(0, videos);
  const double own = result.MeanPsnr(videos, result.psnr.size());
  auto& measured = outcome.file.measured;
  measured["videos"] = static_cast<double>(videos);
  measured["psnr"] = psnr;
  measured["ssim"] = MeanOf(std::span(result.ssim).first(videos));
  measured["density"] = MeanOf(std::span(result.density).first(videos));
  measured["speedup"] = RatioWithInterval(std::span(result.speed).first(videos)).mean;
  measured["calibration_psnr"] = own;
  NoteOtherSize(options, outcome.other_size, measured);
  if (const std::string why = WhyNotTrusted(result, outcome.calibration_videos); !why.empty())
    Remark(why);
}

// Planned for the ranks that seconds were counted for, else for a number that shows something.
void WriteReport(const SearchFlags& flags, const GenerateRequest& request,
                 const SearchOptions& options, const SearchOutcome& outcome) {
  constexpr int32_t kShownRanks = 8;
  const int32_t ranks = options.for_ranks > 1 ? options.for_ranks : kShownRanks;
  WriteTextFile(flags.report, SearchPage({.name = flags.output,
                                          .request = request,
                                          .options = options,
                                          .outcome = outcome,
                                          .ranks = ranks}));
}

void Finish(const SearchFlags& flags, const GenerateRequest& request, const SearchOptions& options,
            SearchOutcome& outcome) {
  if (!outcome.choice.reached) {
    Remark("the target is out of reach: all that can be left out is left out");
  }
  outcome.file.measured["search_seconds"] = outcome.seconds;
  NoteValidation(options, outcome);
  WritePatternFile(flags.output, outcome.file);
  if (!flags.report.empty()) WriteReport(flags, request, options, outcome);
  std::error_code ignored;
  std::filesystem::remove(options.checkpoint, ignored);
  if (flags.json) return PrintJson(SummaryJson(flags, outcome));
  PrintSummary(flags, outcome);
}

// Rank 0's outcome of `run`, on all ranks of the request.
template <typename Outcome, typename Run>
Outcome OnRanks(const SearchFlags& flags, const GenerateRequest& request, const Run& run) {
  const InterruptWatch interrupts;
  Outcome outcome;
  RunOnRanks(RanksOf(flags.making, request), [&](Communicator& comm, int threads) {
    const Recipe agreed = AgreeOnRequest(comm, request);
    Progress progress("");
    const SearchListener listener{.progress = [&](std::string_view line) { progress.Show(line); },
                                  .remark = Remark};
    const SearchTools tools{.listener = listener, .stop_requested = InterruptWatch::Requested};
    Outcome mine = run(agreed, comm, threads, tools);
    if (comm.rank() == 0) outcome = std::move(mine);
  });
  if (IsFirstProcess() && !outcome.interrupted.empty())
    throw Error("{}; the same command with --resume goes on", outcome.interrupted);
  return outcome;
}

void FindPattern(const SearchFlags& flags, const GenerateRequest& request) {
  const SearchOptions options = OptionsOf(flags, request);
  if (options.choice.objective == Objective::kBudget && options.looks_twice &&
      ChoiceVideos(flags) > 0 && options.choosing.empty()) {
    Remark(
        "no prompts in a validation.txt beside the others, or in --validation: whole steps make "
        "the last choice, no videos");
  }
  const PatternFound found = [&](const SearchOutcome& outcome) {
    PatternFile file = outcome.file;
    file.measured["search_seconds"] = outcome.seconds;
    WritePatternFile(flags.output, file);
    Remark(fmt::format("{}: written; what videos say of it follows", flags.output));
  };
  auto outcome = OnRanks<SearchOutcome>(
      flags, request,
      [&](const Recipe& agreed, Communicator& comm, int threads, const SearchTools& tools) {
        if (comm.rank() == 0) CheckMemory(CountSearchBytes(request, options, comm.size(), threads));
        return RunSearch(request, agreed, options, comm, threads, tools, found);
      });
  if (IsFirstProcess()) Finish(flags, request, options, outcome);
}

void FindMasks(const SearchFlags& flags, const GenerateRequest& request) {
  const MaskSearchOptions options = MaskOptionsOf(flags, request);
  const auto outcome = OnRanks<MaskSearchOutcome>(
      flags, request,
      [&](const Recipe& agreed, Communicator& comm, int threads, const SearchTools& tools) {
        if (comm.rank() == 0) {
          CheckMemory({.activations = CountRunBytes(request, 0, comm.size(), threads).activations,
                       .table = CountMaskSearchBytes(request, options),
                       .lanes = kRoundBytes});
        }
        return RunMaskSearch(request, agreed, options, comm, threads, tools);
      });
  if (!IsFirstProcess()) return;
  WriteMaskFolder(flags.output, options.objective, outcome.layers);
  std::error_code ignored;
  std::filesystem::remove(options.checkpoint, ignored);
  if (flags.json) {
    return PrintJson(Json{{"output", flags.output},
                          {"objective", flags.objective},
                          {"density", outcome.Density()},
                          {"seconds", outcome.seconds},
                          {"dense_seconds", outcome.dense_seconds}});
  }
  fmt::print("{}: {} masks of {}, density {:.3f}; use them with --attention {}:{}\n", flags.output,
             flags.objective, Counted(std::ssize(outcome.layers), "layer"), outcome.Density(),
             flags.objective, flags.output);
}

void RunSearchCommand(const SearchFlags& flags) {
  const GenerateRequest request = RequestOf(flags);
  const std::string checkpoint = flags.output + ".ckpt";
  if (!flags.resumes && std::filesystem::exists(checkpoint)) {
    Remark(fmt::format("{}: left by an earlier search; --resume would go on from it", checkpoint));
  }
  if (const Compute compute = ComputeOf(request.recipe).attention; compute != Compute::kF32) {
    Remark(fmt::format("--compute: heads are tried and timed with attention in f32, not {}",
                       ComputeName(compute)));
  }
  if (MakesMasks(flags)) {
    FindMasks(flags, request);
  } else {
    FindPattern(flags, request);
  }
}

}  // namespace

void RegisterSearch(CLI::App& parent) {
  CLI::App& search =
      AddCommand(parent, "search", "what each head of a model attends to: a pattern file");
  auto flags = std::make_shared<SearchFlags>();
  AddSearchFlags(search, *flags);
  search.footer(kExamples);
  search.callback([flags, &search] {
    if (!flags->making.config.empty()) ApplyConfig(flags->making.config, search);
    // A folder is the same with and without it, and names the checkpoint.
    while (flags->output.size() > 1 && flags->output.ends_with('/')) flags->output.pop_back();
    RunSearchCommand(*flags);
  });
}

}  // namespace equitile
