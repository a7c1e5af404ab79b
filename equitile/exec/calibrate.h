// The rates that plans are made from, measured in a fraction of a second: what the kernel does with
// packed strips, and what the links carry.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

struct CalibrationOptions {
  std::vector<int64_t> head_dims = {128};
  std::vector<int64_t> blocks = {64};
  bool links = true;  // where there is more than one rank
};

// Collective: all ranks measure at the same time, as they will compute, and rank 0's figures are
// everybody's; links as MeasureLinks says.
Machine Calibrate(Communicator& comm, ThreadPool& pool, const CalibrationOptions& options);

}  // namespace equitile
