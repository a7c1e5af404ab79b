// What ranks agree on once, at the start of a job: unlike machines must compute alike, and every
// rank must plan from the same rates.
#pragma once

#include <string_view>

#include "equitile/comm/communicator.h"
#include "equitile/kernel/target.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

// Collective. Ranks whose SIMD targets give the same bits keep their own; else the weakest becomes
// everybody's. Returns the arithmetic of all (kernel/target.h). Not while kernels run.
std::string_view AgreeOnArithmetic(Communicator& comm);

// Collective. Rank 0's machine, on every rank.
Machine AgreeOnMachine(Communicator& comm, const Machine& machine);

}  // namespace equitile
