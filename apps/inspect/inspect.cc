// `equitile inspect`: what is in a file. Tells kinds of files apart by their first bytes, not by
// their names.
#include "apps/inspect/inspect.h"

#include <memory>
#include <string_view>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "equitile/base/error.h"
#include "equitile/generate/sidecar.h"
#include "equitile/io/frames/video_reader.h"
#include "equitile/io/mapped_file.h"
#include "equitile/io/records/checkpoint_folder.h"
#include "equitile/io/records/mask_file.h"
#include "equitile/io/records/pattern_file.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile inspect mask.npy                      # density, heaviest rows, a picture\n"
    "  equitile inspect mask.npy --head 3             # the picture of one head\n"
    "  equitile inspect mask.npy --png heads.png --each-head\n"
    "  equitile inspect masks.npy --layer 12 --json\n"
    "  equitile inspect plan.json --mask mask.npy     # does every kept block get computed?\n"
    "  equitile inspect pattern.json --html map.html  # which mode every head has\n"
    "  equitile inspect models/wan-mini -W 256 -H 256 --video-frames 49\n"
    "  equitile inspect model.safetensors             # tensors, shapes, dtypes\n"
    "  equitile inspect video.mp4                     # frames, and how it was made";

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The first character that is not white space opens a JSON object.
bool LooksLikeJson(const MappedFile& file) {
  const std::string_view text = TextOf(file);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

// Eight bytes of header length, then a header that fits into the file and is a JSON object.
bool LooksLikeSafetensors(const MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.size() < 9 || bytes[8] != std::byte{'{'}) return false;
  return bytes[0] != std::byte{'{'};
}

bool IsVideo(const std::string& path) {
  try {
    OpenVideoReader(path);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

void Inspect(const InspectOptions& options) {
  const auto no_page = [&] {
    if (!options.html.empty())
      throw InputError("--html: is for patterns, and {} is none", options.path);
  };
  std::error_code ignored;
  if (IsArchiveOfMasks(options.path)) return InspectMask(options);  // which says what to do
  if (std::filesystem::is_directory(options.path, ignored)) {
    no_page();
    const bool is_model = std::filesystem::exists(options.path + "/model_index.json", ignored);
    return !is_model && IsVideo(options.path) ? InspectVideo(options) : InspectCheckpoint(options);
  }
  if (!std::filesystem::exists(options.path, ignored) && IsHubName(options.path)) {
    return InspectCheckpoint(options);
  }
  const MappedFile file(options.path);
  const bool pattern = LooksLikeJson(file) && LooksLikePatternFile(TextOf(file));
  if (!pattern) no_page();
  if (TextOf(file).starts_with("\x93NUMPY")) {
    if (!options.mask.empty())
      throw InputError("--mask: is for checking a plan, and {} is a mask", options.path);
    InspectMask(options);
  } else if (LooksLikeSafetensors(file) || options.path.ends_with(".safetensors")) {
    InspectTensors(options);
  } else if (pattern) {
    InspectPattern(options);
  } else if (LooksLikeJson(file) && IsSidecar(options.path)) {
    InspectSidecar(options);
  } else if (LooksLikeJson(file)) {
    InspectPlan(options);
  } else if (IsVideo(options.path)) {
    InspectVideo(options);
  } else {
    throw InputError(
        "{}: not a file that inspect knows; it takes a mask (.npy, [lanes, q, kv] "
        "or [layers, lanes, q, kv]), a plan, a pattern or the record of a video (.json), a video "
        "or a folder of pictures, a checkpoint's folder or a .safetensors file",
        options.path);
  }
}

}  // namespace

void RegisterInspect(CLI::App& parent) {
  CLI::App& inspect = AddCommand(
      parent, "inspect", "what is in a file: a mask, a plan, a pattern, a checkpoint or a video");
  auto options = std::make_shared<InspectOptions>();
  inspect
      .add_option("file", options->path,
                  "a mask (.npy, with the .json beside it if there is one), a plan, a pattern or "
                  "the record of a video (.json), a video, a folder of pictures, a checkpoint's "
                  "folder or a .safetensors file")
      ->required();
  AddNumber(
      inspect, "--layer", options->layer, {.min = 0},
      "one layer of a mask with several, the heads of one layer of a pattern (counted from 0)");
  AddNumber(inspect, "--head", options->head, {.min = 0},
            "the picture of this head; default: the mean of all");
  inspect.add_option("--png", options->png, "also write the picture here; of masks: dark is kept")
      ->type_name("FILE");
  inspect.add_option("--html", options->html, "a pattern as a page of its own")->type_name("FILE");
  inspect.add_flag("--each-head", options->each_head,
                   "with --png: a picture of every head, side by side");
  inspect.add_option("--mask", options->mask, "check a plan against this mask")->type_name("FILE");
  AddNumber(inspect, "-W,--width", options->width, {.min = 0},
            "the video whose cost is told for a checkpoint; default: the checkpoint's own");
  AddNumber(inspect, "-H,--height", options->height, {.min = 0}, "its height in pixels");
  AddNumber(inspect, "--video-frames,--num-frames", options->frames, {.min = 0}, "its frames");
  AddJson(inspect, options->json);
  inspect.footer(kExamples);
  inspect.callback([options] { Inspect(*options); });
}

}  // namespace equitile
