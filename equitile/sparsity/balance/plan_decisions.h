// Which plan each call of a layer ran. A run decides by its clock whether to keep a plan, so where
// bits depend on the layout, what it decided is part of the recipe for the same video.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/plan/planners/planner.h"

namespace equitile {

// The planner of the plan that was made for the call; nothing: the layer's last plan was kept.
using PlanDecision = std::optional<PlannerSpec>;

class PlanDecisions {
 public:
  void Add(int32_t layer, PlanDecision decision) { layers_[layer].push_back(decision); }
  int64_t Calls(int32_t layer) const;                  // that are known
  PlanDecision At(int32_t layer, int64_t call) const;  // call < Calls(layer)

  // "0: fractional +19; 1: ring +4 dbsp:2x2 +14": by layer what was made, and how often it was kept
  // after that.
  std::string Text() const;
  // Throws InputError, also for planners that do not fit the ranks.
  static PlanDecisions Parse(std::string_view text, int32_t ranks);

  friend bool operator==(const PlanDecisions&, const PlanDecisions&) = default;

 private:
  std::map<int32_t, std::vector<PlanDecision>> layers_;
};

}  // namespace equitile
