// All videos of a request, one after the other, through crashes and interruptions: what `equitile
// generate` does, without a word of it printed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/exec/trace.h"
#include "equitile/generate/recipe.h"
#include "equitile/generate/request.h"
#include "equitile/io/json_value.h"

namespace equitile {

// How far a run is.
struct RunProgress {
  std::string what;         // "video 2/4: step"
  std::string count;        // "7/20"
  double part = 0;          // of `what`, 0 to 1
  std::string detail = {};  // "1.83 s/it  ETA 24 s  ρ 1.004 fractional"
};

// Whoever listens to a run, on rank 0.
struct RunListener {
  std::function<void(const RunProgress& progress)> progress;
  std::function<void(std::string_view line)> remark;  // what is worth knowing and ends nothing
  std::function<void(const GenerateTask& task, const Json& sidecar)> made;
  std::function<void()> stored = {};  // a checkpoint is on disk, from which --resume goes on
};

// Rank 0's.
struct RunOutcome {
  std::vector<Json> sidecars;    // [tasks]; null where a video was not made
  std::string interrupted = {};  // where the run ended early; "": it did not
  bool goes_on = false;          // with --resume, after an interruption
  std::string resume = {};       // the file for it; "": beside the output
};

struct RunTools {
  const RunListener& listener;
  std::function<bool()> stop_requested;  // asked now and then, on every rank
  Trace* trace = nullptr;                // null or there on all ranks
};

// Collective, with the recipe that the ranks have agreed on (AgreeOnRequest). Throws as ReadStarts
// does.
RunOutcome RunVideos(const GenerateRequest& request, const Recipe& agreed, Communicator& comm,
                     int threads, const RunTools& tools);

}  // namespace equitile
