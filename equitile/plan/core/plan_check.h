// Whether parts make a plan. Apart from plan.cc because these are the rules, and everything else
// relies on them.
#pragma once

#include "equitile/plan/core/plan.h"

namespace equitile {

// Of a checked problem. Throws InputError with the first rule that is broken, in words.
void CheckPlanParts(const PlanParts& parts);

}  // namespace equitile
