// The two baselines that are calibrated offline, as masks per layer: `static` (the best of six
// orders and the heaviest blocks of each head, as PAROAttention) and `sta` (a window of tiles per
// head, as Sliding Tile Attention's search).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/pattern/lane_masks.h"
#include "equitile/search/judge/calibration_run.h"

namespace equitile {

enum class MaskObjective : uint8_t { kStatic, kSta };
std::string_view MaskObjectiveName(MaskObjective objective);

struct MaskSearchOptions {
  MaskObjective objective = MaskObjective::kStatic;
  double density = 0.30;
  int64_t dense_steps = 0;
  std::filesystem::path checkpoint;  // "": none
  bool resumes = false;
};

// Rank 0's.
struct MaskSearchOutcome {
  std::vector<LaneMasks> layers;  // of one pass
  std::string interrupted;        // where it ended early; "": it did not
  double seconds = 0, dense_seconds = 0;

  double Density() const;
};

// Collective, as RunSearch.
MaskSearchOutcome RunMaskSearch(const GenerateRequest& request, const Recipe& agreed,
                                const MaskSearchOptions& options, Communicator& comm, int threads,
                                const SearchTools& tools);

// Memory of one rank for what is recorded.
int64_t CountMaskSearchBytes(const GenerateRequest& request, const MaskSearchOptions& options);

// A folder of mask files, one per layer, made if it is not there; those of an earlier search go.
// Throws InputError where it cannot be written.
void WriteMaskFolder(const std::filesystem::path& folder, MaskObjective objective,
                     const std::vector<LaneMasks>& layers);
// Throws InputError, before the work, where that would not: a file of this name, or other masks in
// the folder.
void CheckMaskFolder(const std::filesystem::path& folder);

}  // namespace equitile
