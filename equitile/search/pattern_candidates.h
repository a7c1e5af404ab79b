// The files that a budget chooses between: by the first look and by the second, with ranges of
// steps and without.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "equitile/io/records/pattern_file.h"
#include "equitile/search/choice/pattern_choice.h"

namespace equitile {

struct PatternCandidate {
  std::string name;  // "first look, one range"
  PatternChoice choice;
  PatternFile file;
};

// Each different from the others and as fast as the first: else the slowest would look best. An
// error holds by the table that a candidate was chosen from. Without a second look there is the one
// of the first, which may be of any objective. Pure.
std::vector<PatternCandidate> FindCandidates(const Calibration& first,
                                             const std::optional<Calibration>& second,
                                             const ChoiceDials& wanted);

}  // namespace equitile
