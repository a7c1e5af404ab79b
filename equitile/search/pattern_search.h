// A search from prompts to a pattern file, on the ranks of a communicator: where keys get their
// attention, what every option of every head would cost, then the choice. Without a word of it
// printed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/generate/request.h"
#include "equitile/search/choice/error_weights.h"
#include "equitile/search/choice/pattern_choice.h"
#include "equitile/search/judge/calibration_run.h"
#include "equitile/search/judge/validation.h"
#include "equitile/search/search_options.h"
#include "equitile/search/trials/attention_maps.h"

namespace equitile {

// A file that might have been: what it does to the velocity of whole steps, and, where it was among
// the best, to videos.
struct SearchCandidate {
  std::string name;  // "first look, one range"
  double density = 1, speedup = 1, velocity_error = 0;
  std::optional<double> psnr;
};

// Rank 0's.
struct SearchOutcome {
  PatternFile file;
  PatternChoice choice;
  std::string interrupted;                  // where the search ended early; "": it did not
  double seconds = 0, dense_seconds = 0;    // of all, and of as many steps without a search
  std::vector<SearchCandidate> candidates;  // the chosen one first; empty: there was no choice
  std::vector<LayerCurve> layers;           // what its weights of errors follow from; empty: none
  ValidationResult validation;              // of the validation's tasks, then of calibration_videos
  size_t calibration_videos = 0;
  ValidationResult other_size;      // of the first of the validation's tasks
  std::vector<FrameSample> frames;  // of a validation's video, else of one that helped to choose
  std::string frames_of;            // its prompt
  AttentionMaps maps;               // of the calibration's dense walks
  std::optional<Machine> machine;
};

// Rank 0, before videos judge what was found: they take long.
using PatternFound = std::function<void(const SearchOutcome& outcome)>;

// Collective, with the recipe that the ranks have agreed on. The request's tasks are what it
// calibrates on. Throws InputError where a checkpoint is of another search, or a target is out of
// reach.
SearchOutcome RunSearch(const GenerateRequest& request, const Recipe& agreed,
                        const SearchOptions& options, Communicator& comm, int threads,
                        const SearchTools& tools, const PatternFound& found = {});

}  // namespace equitile
