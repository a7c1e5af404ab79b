// One video of a request, and the files that belong to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/generate/recipe.h"

namespace equitile {

struct GenerateTask {
  std::string prompt = {};  // as given
  uint64_t seed = 0;
  bool has_random_seed = false;
  std::filesystem::path output = {};        // "": no video
  std::filesystem::path save_latents = {};  // "": none
  std::filesystem::path checkpoint = {};
  std::filesystem::path sidecar = {};
  std::filesystem::path perf_dump = {};
  std::filesystem::path preview = {};
  std::filesystem::path masks = {}, masses = {};  // folders; "": none

  // What messages call it.
  const std::filesystem::path& Name() const { return output.empty() ? save_latents : output; }
};

// Whether the videos of a request become files.
enum class VideoFiles : uint8_t { kWritten, kNone };

// What a run is asked for beside its recipe; nothing of it decides bits.
struct RunOptions {
  VideoFiles files = VideoFiles::kWritten;
  std::string prompts = {};  // a file, instead of the recipe's prompt; its outputs get numbers
  std::string perf_dump = {}, trace = {};
  std::string masks = {}, masses = {};  // folders, a file per step and layer
  int64_t measured_q_blocks = 0;        // of each lane, for the mass that masks hold; 0: none
  bool resumes = false;
  std::string resume = {};  // a file, or "": beside the output
  bool allows_other_target = false;
  bool keeps_checkpoint = false;
  int64_t checkpoint_every = 0;  // 0: as it seems good
  int64_t preview_every = 0;     // 0: none
  bool is_dry = false;           // nothing is loaded or written
  int32_t ranks = 0;             // in this process; 0: a launcher's, known when they run
};

// A line of a file of prompts without a seed has the recipe's, one more for each line. Throws
// InputError where there is no prompt, or no name for a file; a dry run needs neither.
std::vector<GenerateTask> MakeTasks(const Recipe& recipe, const RunOptions& options);

// The recipe of one of them.
Recipe ForTask(Recipe recipe, const GenerateTask& task);

// What the files beside numbered pictures are called by: their folder, or "frames" in this one.
std::filesystem::path PictureFolder(const std::filesystem::path& output);

// A file that belongs to an output: video.mp4 -> video.mp4.json, frames/%05d.png -> frames.json.
std::filesystem::path Beside(const std::filesystem::path& output, std::string_view ending);

// A device or a pipe.
bool IsStream(const std::filesystem::path& path);

}  // namespace equitile
