// The .json beside a video: everything needed to make it again, and what happened when it was made.
#pragma once

#include <filesystem>
#include <string>

#include "apps/cli/table.h"
#include "apps/generate/generate_request.h"

namespace equitile {

// What the files beside numbered pictures are called by: their folder, or "frames" in this one.
std::filesystem::path PictureFolder(const std::filesystem::path& output);

// video.mp4 -> video.json; frames/%05d.png -> frames.json.
std::filesystem::path SidecarPath(const std::filesystem::path& output);

// The part that --from reads.
Json SidecarParameters(const GenerateRequest& request, const GenerateTask& task, DType weights);

// What an earlier run has read from files that the flags still name, the first two as hashes; 0:
// none.
struct RecordedRun {
  uint64_t model = 0, mask = 0;
  int64_t text_rows = 0;
};

// Flags of an earlier run, where `flags` does not give others. Throws InputError for a file that is
// not a sidecar.
RecordedRun ApplySidecar(const std::filesystem::path& path, GenerateFlags& flags);

}  // namespace equitile
