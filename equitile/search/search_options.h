// What a pattern is searched by, and how much is looked at for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "equitile/generate/request.h"
#include "equitile/search/choice/head_options.h"
#include "equitile/search/choice/pattern_choice.h"

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

bool IsPaper(const SearchOptions& options);
bool LooksTwice(const SearchOptions& options);
bool WeighsErrors(const SearchOptions& options);

// What a search of this objective tries.
std::vector<HeadOption> OptionsFor(const SearchOptions& options);

// Of so many prompts, those in which the masses of columns are looked at, those of a second look,
// and how many take turns (ErrorTableShape).
int64_t MassPrompts(const SearchOptions& options, int64_t prompts);
int64_t SecondPrompts(int64_t prompts);
int64_t TurnsFor(const SearchOptions& options, int64_t prompts);

// Of the steps that a velocity is judged in, one in so many is one in which layers are tried.
int64_t EveryWeighedStep(const GenerateRequest& request, int64_t judged_steps);

// Files that a budget may choose between, at most.
int64_t CandidateCount(const SearchOptions& options);

// Videos that the file is judged by: those of the validation, and some of the calibration's own,
// which come last; and the first of the validation's at another size.
std::vector<GenerateTask> JudgingTasks(const GenerateRequest& request,
                                       const SearchOptions& options);
int64_t OwnVideos(const GenerateRequest& request);
std::vector<GenerateTask> OtherSizeTasks(const SearchOptions& options);
GenerateRequest AtSize(const GenerateRequest& request, const SearchOptions::Size& size);

}  // namespace equitile
