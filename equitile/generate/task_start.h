// Where a run goes on: what earlier ones left on disk, checked against what is asked for now.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/generate/request.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/io/json_value.h"

namespace equitile {

// How a task begins; without a checkpoint and a record: anew.
struct TaskStart {
  std::optional<RunCheckpoint> checkpoint = {};  // to go on from
  Json record = {};                              // of a video that is there already, else null
  uint64_t seed = 0;                             // a random one is the checkpoint's
  std::string target = {};                       // of the steps before, where it was another
};

// [tasks], for a recipe that running ranks have agreed on. Throws InputError where a checkpoint is
// missing, damaged or of another run. `say` hears where one is left alone, which videos are there
// already (of several; a single one is made again), and of another SIMD target that was allowed.
std::vector<TaskStart> ReadStarts(const GenerateRequest& request, const Recipe& recipe,
                                  const std::function<void(std::string_view)>& say);

}  // namespace equitile
