// The files of a request. Apart from request.cc, so that whoever writes none links no encoder.
#include <map>

#include "equitile/base/error.h"
#include "equitile/generate/attention_choice.h"
#include "equitile/generate/request.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/generate/sidecar.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/frames/numbered_png.h"
#include "equitile/sparsity/attention_watch.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// With the folders above it.
void MakeFolder(const fs::path& folder, bool is_dry) {
  std::error_code error;
  fs::path first = folder;  // of those that are not there
  while (first.has_parent_path() && !fs::exists(first.parent_path(), error)) {
    first = first.parent_path();
  }
  CheckWritable(first);
  if (is_dry) return;
  if (fs::create_directories(folder, error); error) {
    throw InputError("{}: cannot be made: {}", folder.string(), error.message());
  }
}

// Pictures of a longer video would follow those of this one; only where a record says that they
// are ours they go.
void CheckLeftovers(const GenerateRequest& request, const GenerateTask& task) {
  std::error_code error;
  const fs::path next = NumberedPng(task.output, request.config.frames);
  if (!fs::exists(next, error) || IsSidecar(task.sidecar)) return;
  throw InputError(
      "{}: would follow the {} pictures of this video, and no record says whose it is; "
      "move it, or give another folder",
      next.string(), request.config.frames);
}

// The folder of numbered pictures is made where it is missing.
void CheckVideo(const GenerateRequest& request, const GenerateTask& task) {
  if (task.output.empty()) return;
  const fs::path folder = task.output.parent_path();
  std::error_code error;
  if (IsNumberedPng(task.output) && !folder.empty() && !fs::exists(folder, error)) {
    MakeFolder(folder, request.options.is_dry);
    if (request.options.is_dry) return;
  }
  CheckVideoOutput(task.output, request.VideoOf(task));
  if (IsNumberedPng(task.output)) CheckLeftovers(request, task);
}

// The record of an earlier run is replaced with its video; nothing else is.
void CheckSidecar(const fs::path& path) {
  std::error_code error;
  if (path.empty() || !fs::is_regular_file(path, error) || IsSidecar(path)) return;
  throw InputError(
      "{}: is not a record of a video, and one would be written there; move it, or give the video "
      "another name",
      path.string());
}

// And the preview, which is ours beside other files of ours.
void CheckPreview(const GenerateTask& task) {
  std::error_code error;
  if (task.preview.empty() || !fs::is_regular_file(task.preview, error)) return;
  if (IsSidecar(task.sidecar) || IsRunCheckpoint(task.checkpoint)) return;
  throw InputError(
      "{}: nothing beside it says that it is the preview of a video, and one would be written "
      "there; move it, or give the video another name",
      task.preview.string());
}

// A folder for a file per step and layer. Whoever reads it takes all that it holds for one run.
void CheckExport(const GenerateRequest& request, const fs::path& folder) {
  const bool is_dry = request.options.is_dry;
  if (folder.empty()) return;
  std::error_code error;
  if (!fs::exists(folder, error)) {
    CheckWritable(folder);  // where the folder above is not there, somebody has mistyped it
    MakeFolder(folder, is_dry);
  }
  if (is_dry && !fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error)) throw InputError("{}: is not a folder", folder.string());
  if (!is_dry) CheckWritable(folder / CallFileName(0, 0));
  if (request.options.resumes) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".npy") continue;
    throw InputError(
        "{}: holds files of an earlier run, which would mix with those of this one; give another "
        "folder, or --resume that run",
        folder.string());
  }
}

// Every file that the request reads or writes, with what it is; none may be written over another.
void CheckFiles(const GenerateRequest& request) {
  std::map<fs::path, const char*> known;
  const auto add = [&](const fs::path& path, const char* what) {
    std::error_code ignored;
    return known.emplace(fs::weakly_canonical(fs::absolute(path), ignored), what);
  };
  const auto reads = [&](const fs::path& path, const char* what) {
    if (!path.empty()) add(path, what);
  };
  const fs::path mask = AttentionFile(request.recipe.Text("attention"));
  if (!mask.empty()) {
    reads(mask, "the mask");
    reads(fs::path(mask).replace_extension(".json"), "the description of the mask");
  }
  reads(request.options.prompts, "the prompts");
  reads(request.recipe.Text("machine"), "the rates of the machine");
  const auto writes = [&](const fs::path& path, const char* what) {
    if (path.empty()) return;
    const auto [other, is_new] = add(path, what);
    if (!is_new && !IsStream(path)) {
      throw InputError("{}: cannot hold both {} and {}; give another name", path.string(),
                       other->second, what);
    }
    if (!request.options.is_dry && !IsNumberedPng(path)) CheckWritable(path);
  };
  const auto fills = [&](const fs::path& folder, const char* what) {
    if (folder.empty()) return;
    if (const auto [other, is_new] = add(folder, what); !is_new) {
      throw InputError("{}: cannot hold both {} and {}; give another folder", folder.string(),
                       other->second, what);
    }
    CheckExport(request, folder);
  };
  for (const GenerateTask& task : request.tasks) {
    writes(task.output, "the video");
    writes(task.save_latents, "the latents");
    writes(task.checkpoint, "the checkpoint");
    // One to go on from is read anyway, and what is wrong with it is said there.
    const bool is_read = request.options.resumes && request.options.resume.empty();
    if (!is_read) CheckCheckpointPlace(task.checkpoint);
    writes(task.sidecar, "the parameters of the run");
    CheckSidecar(task.sidecar);
    writes(task.perf_dump, "the seconds of the run");
    writes(task.preview, "the preview");
    CheckPreview(task);
    fills(task.masks, "the masks of all steps");
    fills(task.masses, "the masses of all steps");
  }
  writes(request.options.trace, "the trace");
}

}  // namespace

VideoOptions GenerateRequest::VideoOf(const GenerateTask& task) const {
  VideoOptions options{.height = config.height,
                       .width = config.width,
                       .frames = config.frames,
                       .fps = config.fps,
                       .title = task.prompt};
  const bool is_said = recipe.SourceOf("crf") == Recipe::Source::kGiven;
  if (recipe.Has("crf") && (is_said || HasCrf(task.output))) options.crf = recipe.Integer("crf");
  return options;
}

GenerateRequest CheckedRequest(Recipe recipe, const RunOptions& options) {
  GenerateRequest request = PlainRequest(std::move(recipe), options);
  for (const GenerateTask& task : request.tasks) CheckVideo(request, task);
  CheckFiles(request);
  return request;
}

}  // namespace equitile
