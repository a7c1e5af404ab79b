// What shall be made, completely checked before any work is done.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "equitile/generate/recipe.h"
#include "equitile/generate/task.h"
#include "equitile/io/frames/video_writer.h"
#include "equitile/io/records/checkpoint_folder.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/sparsity/make_source.h"

namespace equitile {

struct GenerateRequest {
  Recipe recipe;  // of all tasks
  RunOptions options;
  std::vector<GenerateTask> tasks;
  CheckpointFolder folder;
  GenerationConfig config;  // seed: of the task
  WanConfig transformer;
  SparsityOptions sparsity = {};          // masks: for `config.Passes()` items
  std::optional<Machine> machine = {};    // rates that auto plans with
  std::vector<std::string> remarks = {};  // what is worth knowing before it begins

  VideoOptions VideoOf(const GenerateTask& task) const;
};

// The recipe names a model. Throws InputError for everything that can be known to fail before
// weights are read.
GenerateRequest CheckedRequest(Recipe recipe, const RunOptions& options);

// The same without a look at the files that are to be written.
GenerateRequest PlainRequest(Recipe recipe, const RunOptions& options);

}  // namespace equitile
