// A search from prompts to a pattern file, on the ranks of a communicator: where keys get their
// attention, what every option of every head would cost, then the choice. Without a word of it
// printed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/generate/request.h"
#include "equitile/search/attention_maps.h"
#include "equitile/search/calibration_run.h"
#include "equitile/search/error_weights.h"
#include "equitile/search/pattern_choice.h"
#include "equitile/search/validation.h"

namespace equitile {

struct SearchOptions {
  ChoiceDials choice;
  double paper_density = 0.30;  // of each sized mode of the paper
  int64_t dense_steps = 0;
  int32_t for_ranks = 1;             // that seconds are counted for
  std::filesystem::path checkpoint;  // of the search; "": none
  bool resumes = false;
  // A budget's second look, with the layers before already sparse, and the choice between
  // candidates by what whole steps make of them.
  bool looks_twice = true;
  std::vector<GenerateTask> choosing;    // videos that decide between the best; empty: steps do
  std::vector<GenerateTask> validation;  // videos to judge the file by; empty: none
  // The first of the validation's videos are made at this size too; frames 0: they are not.
  struct Size {
    int64_t width = 0, height = 0, frames = 0;
  } other_size;
};

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

// Memory of one rank, beside the weights.
struct SearchBytes {
  int64_t activations = 0;  // of all prompts that are walked at once
  int64_t table = 0;        // of errors, and its copy in a checkpoint
  int64_t lanes = 0;        // that are tried at once
  int64_t Total() const { return activations + table + lanes; }
};
SearchBytes CountSearchBytes(const GenerateRequest& request, const SearchOptions& options,
                             int32_t ranks, int threads);

// What a search of this objective tries.
std::vector<HeadOption> OptionsFor(const SearchOptions& options);

// Collective, with the recipe that the ranks have agreed on. The request's tasks are what it
// calibrates on. Throws InputError where a checkpoint is of another search, or a target is out of
// reach.
SearchOutcome RunSearch(const GenerateRequest& request, const Recipe& agreed,
                        const SearchOptions& options, Communicator& comm, int threads,
                        const SearchTools& tools, const PatternFound& found = {});

}  // namespace equitile
