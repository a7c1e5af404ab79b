// What a video holds, and how it was made: from the file itself, and from the record beside it.
#include <fmt/format.h>

#include <filesystem>

#include "apps/cli/table.h"
#include "apps/inspect/inspect.h"
#include "equitile/base/duration.h"
#include "equitile/base/error.h"
#include "equitile/generate/sidecar.h"
#include "equitile/generate/task.h"
#include "equitile/io/frames/video_reader.h"

namespace equitile {
namespace {

struct VideoFacts {
  int64_t frames = 0, height = 0, width = 0;
  std::optional<double> fps;
};

VideoFacts FactsOf(const std::string& path) {
  const auto reader = OpenVideoReader(path);
  VideoFacts facts{.fps = reader->Fps()};
  for (RgbImage frame; reader->Next(frame); ++facts.frames) {
    facts.height = frame.height;
    facts.width = frame.width;
  }
  return facts;
}

// "seed 42"; nothing for what is null or not there.
void PrintIfThere(const Json& object, const char* key, const char* name) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null() || *found == "") return;
  fmt::print("{:<14} {}\n", name, found->is_string() ? found->get<std::string>() : found->dump());
}

// An object of another; an empty one for what is null or not there.
Json PartOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_object() ? Json::object() : *found;
}

void PrintRun(const Json& run) {
  const Json seconds = PartOf(run, "seconds");
  if (seconds.contains("total") && seconds["total"].is_number()) {
    fmt::print("{:<14} {}\n", "made in", DurationText(seconds["total"].get<double>()));
  }
  PrintIfThere(run, "ranks", "ranks");
  PrintIfThere(run, "threads_per_rank", "threads");
  PrintIfThere(run, "target", "target");
  PrintIfThere(run, "encoder", "encoder");
  const Json sparsity = PartOf(run, "sparsity");
  if (sparsity.contains("density") && sparsity["density"].is_number()) {
    fmt::print("{:<14} {:.3f} of the attention\n", "computed", sparsity["density"].get<double>());
  }
  if (run.contains("steps_skipped") && !run["steps_skipped"].empty()) {
    fmt::print("{:<14} {}\n", "skipped", Counted(std::ssize(run["steps_skipped"]), "step"));
  }
}

void PrintRecord(const Json& record) {
  const Json& parameters = record["parameters"];
  for (const auto& [key, name] :
       {std::pair("prompt", "prompt"), std::pair("negative_prompt", "without"),
        std::pair("model", "model"), std::pair("seed", "seed"), std::pair("steps", "steps"),
        std::pair("cfg_scale", "guidance"), std::pair("attention", "attention"),
        std::pair("dense_steps", "dense steps"), std::pair("cache", "cache")}) {
    PrintIfThere(parameters, key, name);
  }
  PrintIfThere(record, "equitile", "equitile");
  PrintRun(record["run"]);
}

// Checked as far as it is shown.
Json RecordAt(const std::filesystem::path& path) {
  const std::string name = path.string();
  Json record = ParseJson(ReadTextFile(path), name);
  const JsonValue root(record, name);
  const JsonValue parameters = root["parameters"], run = root["run"];
  parameters.Items();
  run.Items();
  for (const char* key : {"video_frames", "width", "height"}) {
    if (const auto value = parameters.Find(key)) value->Integer(0, INT64_MAX);
  }
  for (const char* part : {"seconds", "sparsity"}) {
    if (const auto value = run.Find(part)) value->Items();
  }
  return record;
}

}  // namespace

void InspectSidecar(const InspectOptions& options) {
  const Json record = RecordAt(options.path);
  if (options.json) return PrintJson(record);
  fmt::print("{}: how a video was made; `equitile generate --from {} -o FILE` makes it again\n",
             options.path, options.path);
  const Json& parameters = record["parameters"];
  const auto count = [&](const char* key) {
    const auto found = parameters.find(key);
    return found == parameters.end() || found->is_null() ? 0 : found->get<int64_t>();
  };
  if (count("video_frames") > 0) {
    fmt::print("{:<14} {} of {}x{}\n", "video", Counted(count("video_frames"), "frame"),
               count("width"), count("height"));
  }
  PrintRecord(record);
}

void InspectVideo(const InspectOptions& options) {
  const VideoFacts facts = FactsOf(options.path);
  const std::filesystem::path beside = RecordOf(options.path);
  const bool has_record = IsSidecar(beside);
  if (options.json) {
    return PrintJson({{"frames", facts.frames},
                      {"width", facts.width},
                      {"height", facts.height},
                      {"fps", facts.fps ? Json(*facts.fps) : Json(nullptr)},
                      {"record", has_record ? RecordAt(beside) : Json(nullptr)}});
  }
  std::string rate;
  if (facts.fps && facts.frames > 1) {
    rate = fmt::format(", {:.4g} frames per second, {}", *facts.fps,
                       DurationText(static_cast<double>(facts.frames) / *facts.fps));
  }
  fmt::print("{}: {} of {}x{}{}\n", options.path, Counted(facts.frames, "frame"), facts.width,
             facts.height, rate);
  if (has_record) PrintRecord(RecordAt(beside));
}

}  // namespace equitile
