// How long something takes, beside what the machine can do at most in the same seconds: what every
// bench of a kernel reports.
#pragma once

#include <cstdint>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"

namespace equitile {

struct PeakTiming {
  double seconds = 0.0;      // median of the runs
  double peak_gflops = 0.0;  // best window of multiply-adds on all threads of the pool
  int64_t runs = 0;
};

// Runs `work` in several rounds, in turns with windows of multiply-adds (kernel/fma_peak.h): a
// machine whose clock or neighbours change while it measures then slows both. `report`, when given,
// is told after each round how many are done, of how many.
PeakTiming TimeBesidePeak(ThreadPool& pool, FunctionRef<void()> work,
                          FunctionRef<void(int64_t done, int64_t total)> report = {});

}  // namespace equitile
