// How long something takes, beside what the machine can do at most in the same seconds: what every
// bench of a kernel reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"

namespace equitile {

struct PeakTiming {
  double seconds = 0.0;      // median of the runs
  double least = 0.0;        // of the runs, as TurnTimes has it
  double peak_gflops = 0.0;  // best window of multiply-adds on all threads of the pool
  int64_t runs = 0;
};

// Runs `work` in several rounds, in turns with windows of multiply-adds (kernel/simd/fma_peak.h): a
// machine whose clock or neighbours change while it measures then slows both. `report`, when given,
// is told after each round how many are done, of how many.
PeakTiming TimeBesidePeak(ThreadPool& pool, FunctionRef<void()> work,
                          FunctionRef<void(int64_t done, int64_t total)> report = {});

// The same for several works, run after each other again and again: work(0), work(1), ... Ratios of
// their least seconds are good where other work on the machine comes and goes.
std::vector<PeakTiming> TimeInTurnsBesidePeak(
    ThreadPool& pool, size_t works, FunctionRef<void(size_t work)> run,
    FunctionRef<void(int64_t done, int64_t total)> report = {});

}  // namespace equitile
