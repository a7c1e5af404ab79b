// `equitile compare`: how alike two videos, two folders of pictures or two files of latents are.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/html.h"
#include "apps/cli/table.h"
#include "apps/compare/compare_html.h"
#include "apps/compare/compare_prompts.h"
#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/frames/video_reader.h"
#include "equitile/io/json_value.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile compare a.mp4 b.mp4                     # PSNR and SSIM, mean and worst frame\n"
    "  equitile compare frames_a/ frames_b/ --json      # folders of PNG, every frame\n"
    "  equitile compare a.mp4 b.mp4 --html report.html  # side by side, and the difference\n"
    "  equitile compare a.safetensors b.safetensors     # latents\n"
    "  # both generated for each prompt: PSNR, SSIM and speed with 95 % confidence intervals; "
    "several\n"
    "  # --b are compared with one --a:\n"
    "  equitile compare --prompts prompts.txt --a \"--attention dense\" --b \"--attention "
    "mask:m.npy\"";

// In a page of pictures: all frames of a short video, at least enough to see of a long one, few
// enough to open.
constexpr int64_t kShownPixels = 8'000'000, kLeastShownFrames = 12;

struct CompareOptions {
  std::string a, b, html;
  bool json = false;
  ComparePrompts prompts;
};

struct ComparedVideos {
  VideoComparison comparison;
  int64_t pixels = 0;                               // of a frame
  std::optional<double> fps;                        // of the first
  std::vector<std::string> pictures_a, pictures_b;  // with --html: of those to be shown
};

// Two passes where pictures are wanted: which frame is the worst is known at the end.
ComparedVideos CompareVideos(const CompareOptions& options, const std::set<int64_t>& wanted) {
  const auto a = OpenVideoReader(options.a), b = OpenVideoReader(options.b);
  ComparedVideos result;
  result.fps = a->Fps();
  RgbImage image_a, image_b;
  for (int64_t frame = 0;; ++frame) {
    const bool more_a = a->Next(image_a), more_b = b->Next(image_b);
    if (more_a != more_b) {
      throw InputError("{} ends after {} frames, {} goes on; lengths must be the same",
                       more_a ? options.b : options.a, frame, more_a ? options.a : options.b);
    }
    if (!more_a) break;
    result.comparison.Add(image_a, image_b);
    result.pixels = image_a.height * image_a.width;
    if (!wanted.contains(frame)) continue;
    result.pictures_a.push_back(PictureText(image_a));
    result.pictures_b.push_back(PictureText(image_b));
  }
  if (result.comparison.frames().empty()) throw InputError("{}: no frames", options.a);
  return result;
}

std::set<int64_t> FramesToShow(const ComparedVideos& videos) {
  const int64_t count = std::ssize(videos.comparison.frames());
  std::set<int64_t> frames = {videos.comparison.WorstFrame()};
  const int64_t even =
      std::min(count, std::max(kLeastShownFrames, kShownPixels / (2 * videos.pixels)));
  for (int64_t i = 0; i < even; ++i) frames.insert(i * count / even);
  return frames;
}

std::string Decibels(const std::optional<double>& psnr) {
  return psnr.has_value() ? fmt::format("{:.2f} dB", *psnr) : "identical";
}

// "a.mp4"; "frames/" -> "frames".
std::string FileName(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

void WritePage(const CompareOptions& options, const ComparedVideos& videos) {
  const std::set<int64_t> wanted = FramesToShow(videos);
  ComparedVideos shown = CompareVideos(options, wanted);
  const VideoComparison& comparison = videos.comparison;
  const std::string a = FileName(options.a), b = FileName(options.b);
  ComparePage page{.title = fmt::format("{} and {}", a, b)};
  page.fps = std::max<int64_t>(1, std::llround(videos.fps.value_or(static_cast<double>(page.fps))));
  page.facts = {
      {"frames",
       fmt::format("{}, {} identical", comparison.frames().size(), comparison.IdenticalFrames())},
      {"PSNR", fmt::format("{} on average, {} at worst (frame {})", Decibels(comparison.PsnrMean()),
                           Decibels(comparison.PsnrMin()), comparison.WorstFrame())},
      {"SSIM", fmt::format("{:.4f} on average", comparison.SsimMean())}};
  page.rows.push_back(PageRowJson({.name = "",
                                   .frames = {wanted.begin(), wanted.end()},
                                   .screens = {{.label = a, .frames = std::move(shown.pictures_a)},
                                               {.label = b, .frames = std::move(shown.pictures_b)}},
                                   .curves = {comparison}}));
  WriteTextFile(options.html, ComparePageText(page));
}

void RunVideos(const CompareOptions& options) {
  const ComparedVideos videos = CompareVideos(options, {});
  const VideoComparison& comparison = videos.comparison;
  if (!options.html.empty()) WritePage(options, videos);
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
  options.prompts.json = options.json;
  options.prompts.html = options.html;
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
      AddCommand(parent, "compare", "how alike two videos are: PSNR and SSIM per frame");
  auto options = std::make_shared<CompareOptions>();
  const char* what = "a video, a folder of .png, or latents (.safetensors)";
  compare.add_option("first", options->a, what);
  compare.add_option("second", options->b, what);
  compare
      .add_option("--html", options->html,
                  "also write a page here that shows both side by side; with --prompts the videos "
                  "are kept beside it, in FILE-videos")
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
