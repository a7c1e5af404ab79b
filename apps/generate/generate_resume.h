// Where `equitile generate --resume` goes on: what earlier runs left on disk, checked against what
// is asked for now.
#pragma once

#include <optional>
#include <vector>

#include "apps/cli/table.h"
#include "apps/generate/generate_request.h"
#include "equitile/generate/run_checkpoint.h"

namespace equitile {

// How a task begins; both empty: anew.
struct TaskStart {
  std::optional<RunCheckpoint> checkpoint;  // to go on from
  Json record;                              // of a video that is there already, else null
};

// [tasks]. Throws InputError where a checkpoint is missing, damaged or of another run. Says on
// stderr where one is left alone, and which videos are there already (of several; a single one is
// made again).
std::vector<TaskStart> ReadStarts(const GenerateRequest& request);

// As stored, else as ChooseWeights says.
DType WeightsOf(const GenerateRequest& request, const std::vector<TaskStart>& starts);

}  // namespace equitile
