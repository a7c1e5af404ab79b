// The rates that plans are made from, measured in a fraction of a second: what the kernel does with
// packed strips, and what the links carry.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/kernel/compute.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

struct CalibrationOptions {
  std::vector<int64_t> head_dims = {128};
  std::vector<int64_t> blocks = {64};
  std::vector<Compute> computes = {Compute::kF32};  // of attention
  bool links = true;                                // where there is more than one rank
  bool linear = false;                              // rates of linear layers too
};

// Multiply-adds per second, times two, of linear layers in this arithmetic: the best of some runs,
// which says what it can do whoever else is on the machine. Some milliseconds. Not collective.
double MeasureLinearGflops(ThreadPool& pool, Compute compute);

// How many times as fast as in f32 attention on kept blocks and linear layers are: minima of runs
// in turns, on one thread in processor time, so that other work on the machine hardly shows. Some
// tenths of a second. Not collective.
struct SpeedUps {
  double attention = 1, linear = 1;
};
SpeedUps MeasureSpeedUps(Compute attention, Compute linear, int64_t head_dim);

// Collective: all ranks measure at the same time, as they will compute, and rank 0's figures are
// everybody's; links as MeasureLinks says.
Machine Calibrate(Communicator& comm, ThreadPool& pool, const CalibrationOptions& options);

}  // namespace equitile
