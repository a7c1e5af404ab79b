// What `equitile inspect` can look into: one function per kind of file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace equitile {

struct InspectOptions {
  std::string path;
  std::optional<int64_t> layer;  // of a mask with several, or of a pattern
  std::optional<int64_t> head;   // the picture of one head instead of the mean
  bool each_head = false;        // the PNG holds one picture per head
  std::string png, html;
  std::string mask;  // check a plan against it
  // The video whose cost is told for a checkpoint; absent: the checkpoint's own default.
  std::optional<int64_t> width, height, frames;
  bool json = false;
};

void InspectMask(const InspectOptions& options);
void InspectPlan(
    const InspectOptions& options);  // throws Error if the file contradicts itself or the mask

void InspectSidecar(const InspectOptions& options);  // what `generate` writes beside a video
void InspectVideo(const InspectOptions& options);

void InspectPattern(const InspectOptions& options);

void InspectCheckpoint(const InspectOptions& options);  // a folder with model_index.json
void InspectTensors(const InspectOptions& options);     // one safetensors file

}  // namespace equitile
