// Which plans a recorded run had, where they decide bits. They are for the very same run: whoever
// changes anything that decides bits gets layouts of their own.
#pragma once

#include <optional>
#include <string>

#include "equitile/generate/recipe.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/sparsity/balance/plan_decisions.h"

namespace equitile {

struct RecordedLayouts {
  PlanDecisions decisions;
  std::optional<Machine> rates;  // with which plans were made, where the run measured them
};

// Into the recipe of one video, in which everything else is settled.
void RecordLayouts(const RecordedLayouts& layouts, Recipe& recipe);

// What was recorded for the video of this recipe, on as many ranks; nothing: nothing was, or it was
// for another run. Throws InputError for what cannot be read.
std::optional<RecordedLayouts> FindLayouts(const Recipe& recipe, int32_t ranks);

}  // namespace equitile
