// A run between two steps, on disk: everything to go on with the same bits after a crash, and
// enough to notice that a file is damaged or belongs to another run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

// How a step went, for summaries alone.
struct StepRecord {
  double seconds = 0;
  bool skipped = false;  // not computed

  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

// A safetensors file: latents and sampler history as tensors, the rest as metadata.
struct RunCheckpoint {
  // What decides the bits of the result (Recipe::BitsIdentity). Two runs are the same run exactly
  // when they agree in all of it.
  std::map<std::string, std::string> identity;
  std::string version;  // of the program that wrote it
  Shape shape;          // [channels, frames, height, width]
  DenoiseState state;
  SourceState sparsity;           // of masks and skipped steps
  std::vector<StepRecord> steps;  // that are done; none: of a version that kept no record
};

// Atomically, with a checksum over all of it. Throws as WriteFileAtomically does.
void WriteRunCheckpoint(const std::filesystem::path& path, const RunCheckpoint& checkpoint);

// Throws InputError for a file that is not a checkpoint, is damaged, or does not fit together.
RunCheckpoint ReadRunCheckpoint(const std::filesystem::path& path);

// The same for bytes that were parsed already, checksum included; `path` is for messages.
RunCheckpoint ParseRunCheckpoint(const SafetensorsHeader& file, const std::filesystem::path& path);

// Whether a file is one, of whatever version, whole or damaged.
bool IsRunCheckpoint(const std::filesystem::path& path);

// Throws InputError where a checkpoint would take the place of another file.
void CheckCheckpointPlace(const std::filesystem::path& path);

// What such a file should say under "checksum".
std::string RunChecksum(const SafetensorsHeader& file);

// Throws InputError that names the first thing that differs, with both values.
void CheckSameRun(const std::filesystem::path& path, const RunCheckpoint& checkpoint,
                  const std::map<std::string, std::string>& identity);

}  // namespace equitile
