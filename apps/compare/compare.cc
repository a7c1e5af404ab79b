// `equitile compare`: how alike two videos, two folders of pictures or two files of latents are.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "apps/compare/compare_html.h"
#include "apps/compare/compare_prompts.h"
#include "equitile/base/error.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/json_value.h"
#include "equitile/io/safetensors.h"
#include "equitile/io/video_reader.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile compare a.mp4 b.mp4                    PSNR and SSIM, mean and worst frame\n"
    "  equitile compare frames_a/ frames_b/ --json     folders of PNG, every frame\n"
    "  equitile compare a.mp4 b.mp4 --html report.html frames side by side, and the difference\n"
    "  equitile compare a.safetensors b.safetensors    latents\n"
    "  equitile compare --prompts prompts.txt --a \"--attention dense\" --b \"--attention "
    "mask:m.npy\"\n"
    "                                                  both generated for each prompt: PSNR, SSIM "
    "and\n"
    "                                                  speed with 95 % confidence intervals; "
    "several "
    "--b\n"
    "                                                  are compared with one a";

// In a page of pictures: enough to see, few enough to open.
constexpr size_t kShownFrames = 12;

struct CompareOptions {
  std::string a, b, html;
  bool json = false;
  ComparePrompts prompts;
};

struct ComparedVideos {
  VideoComparison comparison;
  std::vector<FramePair> pairs;  // with --html: those to be shown
};

// Two passes where pictures are wanted: which frame is the worst is known at the end.
ComparedVideos CompareVideos(const CompareOptions& options, const std::set<int64_t>& wanted) {
  const auto a = OpenVideoReader(options.a), b = OpenVideoReader(options.b);
  ComparedVideos result;
  RgbImage image_a, image_b;
  for (int64_t frame = 0;; ++frame) {
    const bool more_a = a->Next(image_a), more_b = b->Next(image_b);
    if (more_a != more_b) {
      throw InputError("{} ends after {} frames, {} goes on; lengths must be the same",
                       more_a ? options.b : options.a, frame, more_a ? options.a : options.b);
    }
    if (!more_a) break;
    result.comparison.Add(image_a, image_b);
    if (wanted.contains(frame)) result.pairs.push_back({frame, image_a, image_b});
  }
  if (result.comparison.frames().empty()) throw InputError("{}: no frames", options.a);
  return result;
}

std::set<int64_t> FramesToShow(const VideoComparison& comparison) {
  const size_t count = comparison.frames().size();
  std::set<int64_t> frames = {comparison.WorstFrame()};
  const size_t even = std::min(count, kShownFrames);
  for (size_t i = 0; i < even; ++i) frames.insert(static_cast<int64_t>(i * count / even));
  return frames;
}

std::string Decibels(const std::optional<double>& psnr) {
  return psnr.has_value() ? fmt::format("{:.2f} dB", *psnr) : "identical";
}

void RunVideos(const CompareOptions& options) {
  const VideoComparison comparison = CompareVideos(options, {}).comparison;
  if (!options.html.empty()) {
    const ComparedVideos shown = CompareVideos(options, FramesToShow(comparison));
    WriteTextFile(options.html, ComparePage(options.a, options.b, comparison, shown.pairs));
  }
  if (options.json) return PrintJson(comparison.ToJson());
  const auto& worst = comparison.frames()[static_cast<size_t>(comparison.WorstFrame())];
  fmt::print("{}, {} identical\n", Counted(std::ssize(comparison.frames()), "frame"),
             comparison.IdenticalFrames());
  if (!comparison.PsnrMean()) return;
  fmt::print("PSNR  {} on average\nSSIM  {:.4f} on average\n", Decibels(comparison.PsnrMean()),
             comparison.SsimMean());
  fmt::print("worst frame {}: PSNR {}, SSIM {:.4f}\n", comparison.WorstFrame(),
             Decibels(worst.psnr), worst.ssim);
}

// The one tensor of a file of latents.
const StoredTensor& Latents(const TensorFiles& file) {
  if (const StoredTensor* latents = file.Find("latents")) return *latents;
  if (file.tensors().size() == 1) return file.tensors()[0];
  throw InputError("{}: {} tensors; latents are one tensor, or the one called latents", file.name(),
                   file.tensors().size());
}

void RunLatents(const CompareOptions& options) {
  const TensorFiles file_a = TensorFiles::OpenFile(options.a),
                    file_b = TensorFiles::OpenFile(options.b);
  const StoredTensor &a = Latents(file_a), &b = Latents(file_b);
  if (a.shape != b.shape) {
    throw InputError("latents {} and {}: shapes must be the same", a.ShapeText(), b.ShapeText());
  }
  const std::vector<float> x = a.Floats(), y = b.Floats();
  double largest = 0.0, squares = 0.0, errors = 0.0;
  int64_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = std::fabs(static_cast<double>(x[i]) - y[i]);
    if (x[i] != y[i]) ++different;
    if (error > largest || std::isnan(error)) largest = error;
    squares += static_cast<double>(y[i]) * y[i];
    errors += error * error;
  }
  const double relative = errors == 0.0 ? 0.0 : std::sqrt(errors / squares);
  if (options.json) {
    return PrintJson({{"shape", a.shape},
                      {"identical", different == 0},
                      {"different_elements", different},
                      {"max_difference", largest},
                      {"relative_l2", relative}});
  }
  if (different == 0) {
    fmt::print("latents {}: identical\n", a.ShapeText());
  } else {
    fmt::print("latents {}: {} of {} elements differ, at most by {:.3g}; relative L2 {:.3g}\n",
               a.ShapeText(), different, x.size(), largest, relative);
  }
}

void CompareGenerated(CompareOptions& options, bool both_sides) {
  if (!both_sides) {
    throw InputError("--prompts: give --a and --b too, the flags of generate for each side");
  }
  if (!options.a.empty()) throw InputError("{}: not with --prompts", options.a);
  if (!options.html.empty()) throw InputError("--html: not with --prompts");
  options.prompts.json = options.json;
  RunComparePrompts(options.prompts);
}

void Compare(const CompareOptions& options) {
  if (options.b.empty()) {
    throw InputError(
        "give two videos, folders of .png or latents; or --prompts FILE --a FLAGS --b FLAGS");
  }
  if (!options.html.empty()) CheckWritable(options.html);
  const bool latents_a = options.a.ends_with(".safetensors"),
             latents_b = options.b.ends_with(".safetensors");
  if (latents_a != latents_b) {
    throw InputError("{} and {}: latents compare with latents, videos with videos", options.a,
                     options.b);
  }
  if (!latents_a) return RunVideos(options);
  if (!options.html.empty()) throw InputError("--html: is for videos, not for latents");
  RunLatents(options);
}

}  // namespace

void RegisterCompare(CLI::App& parent) {
  CLI::App& compare =
      *parent.add_subcommand("compare", "how alike two videos are: PSNR and SSIM per frame");
  auto options = std::make_shared<CompareOptions>();
  const char* what = "a video, a folder of .png, or latents (.safetensors)";
  compare.add_option("first", options->a, what);
  compare.add_option("second", options->b, what);
  compare.add_option("--html", options->html, "also write a page with frames side by side here")
      ->type_name("FILE");
  const CLI::Option* prompts =
      compare.add_option("--prompts", options->prompts.prompts,
                         "generate both for each line, `prompt` or `seed<TAB>prompt`");
  const CLI::Option* a = compare.add_option("--a", options->prompts.a,
                                            "with --prompts: flags of generate for the first side");
  const CLI::Option* b =
      compare
          .add_option("--b", options->prompts.b,
                      "and for the second; may be empty, and given several times")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const CLI::Option* frames =
      compare
          .add_option("--save-frames", options->prompts.frames,
                      "with --prompts: also write all frames, as FOLDER/b/0001/00000.png")
          ->type_name("FOLDER");
  AddJson(compare, options->json);
  compare.footer(kExamples);
  compare.callback([options, prompts, a, b, frames] {
    if (prompts->count() > 0) {
      return CompareGenerated(*options, a->count() > 0 && b->count() > 0);
    }
    if (a->count() + b->count() + frames->count() > 0) {
      throw InputError("--a, --b and --save-frames: only with --prompts FILE");
    }
    Compare(*options);
  });
}

}  // namespace equitile
