// What `equitile search` was told on its command line, and what that makes of a request.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/generate/generate_flags.h"
#include "equitile/search/mask_search.h"
#include "equitile/search/search_options.h"

namespace equitile {

struct SearchFlags {
  GenerateFlags making;  // sizes, steps, ranks, ...
  int64_t count = 8;
  std::vector<int64_t> seeds;
  std::string objective = "budget", step_ranges, output;
  std::optional<double> lambda, epsilon, mode_density, density, error, speedup;
  int64_t validate = 0;
  std::optional<int64_t> for_ranks, choice_videos;
  std::optional<bool> looks_twice;
  std::string validation;            // a file of prompts
  std::vector<int64_t> validate_at;  // width, height, frames; empty: a size of our choice
  std::string report;                // a page
  bool resumes = false, json = false;
};

void AddSearchFlags(CLI::App& app, SearchFlags& flags);

// Throw InputError for flags that do not go together, and as CheckedRequest does.
GenerateRequest RequestOf(const SearchFlags& flags);
SearchOptions OptionsOf(const SearchFlags& flags, const GenerateRequest& request);
// That decide between candidates.
int64_t ChoiceVideos(const SearchFlags& flags);
// Where the objective gives masks instead of a pattern.
bool MakesMasks(const SearchFlags& flags);
// Whether videos would decide in the end, but there are no prompts for them.
bool LacksValidation(const SearchFlags& flags);
MaskSearchOptions MaskOptionsOf(const SearchFlags& flags, const GenerateRequest& request);

}  // namespace equitile
