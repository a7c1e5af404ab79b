#include "equitile/search/pattern_candidates.h"

#include <utility>

namespace equitile {
namespace {

PatternCandidate Find(std::string name, const Calibration& calibration, const ChoiceDials& dials) {
  PatternCandidate found{
      .name = std::move(name), .choice = ChoosePattern(calibration, dials), .file = {}};
  found.file = ToPatternFile(calibration, found.choice);
  return found;
}

bool Holds(const PatternChoice& choice, const ChoiceDials& dials) {
  constexpr double kRounding = 1 + 1e-9;
  return dials.target != TargetKind::kError || dials.objective != Objective::kBudget ||
         choice.error <= kRounding * dials.target_value;
}

}  // namespace

std::vector<PatternCandidate> FindCandidates(const Calibration& first,
                                             const std::optional<Calibration>& second,
                                             const ChoiceDials& wanted) {
  PatternCandidate by_first = Find("first look", first, wanted);
  if (!second) return {std::move(by_first)};
  ChoiceDials dials = wanted;
  PatternCandidate by_second = Find("second look", *second, dials);
  if (dials.target == TargetKind::kError) {
    const bool first_is_slower = by_first.choice.speedup <= by_second.choice.speedup;
    dials.target = TargetKind::kSpeedup;
    dials.target_value = (first_is_slower ? by_first : by_second).choice.speedup;
    if (first_is_slower) {
      by_second = Find(by_second.name, *second, dials);
    } else {
      by_first = Find(by_first.name, first, dials);
    }
  }
  std::vector<PatternCandidate> all;
  const auto add = [&](PatternCandidate found) {
    for (const PatternCandidate& other : all) {
      if (other.file.ranges == found.file.ranges) return;
    }
    if (Holds(found.choice, wanted)) all.push_back(std::move(found));
  };
  ChoiceDials one_range = dials;
  one_range.step_ranges = StepRangesKind::kOne;
  const bool is_open = wanted.step_ranges == StepRangesKind::kAuto;
  add(std::move(by_first));
  if (is_open) add(Find("first look, one range", first, one_range));
  add(std::move(by_second));
  if (is_open) add(Find("second look, one range", *second, one_range));
  return all;
}

}  // namespace equitile
