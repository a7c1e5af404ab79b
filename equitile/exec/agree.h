// What ranks agree on once, at the start of a job: unlike machines must compute alike, and every
// rank must plan from the same rates.
#pragma once

#include "equitile/comm/communicator.h"
#include "equitile/kernel/target.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

// Collective. The weakest SIMD target among the ranks becomes everybody's; returns it. Not while
// kernels run.
Target AgreeOnTarget(Communicator& comm);

// Collective. Rank 0's machine, on every rank.
Machine AgreeOnMachine(Communicator& comm, const Machine& machine);

}  // namespace equitile
