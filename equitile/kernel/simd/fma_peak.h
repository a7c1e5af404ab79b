// What the machine can do at most: independent multiply-add chains on all threads at once. Every
// bench measures it in the same run and gives its own figure as a fraction of it.
#pragma once

#include "equitile/base/thread_pool.h"

namespace equitile {

// GFLOP/s of one window of about `seconds`, all threads of the pool together, on the active target.
// Machines are noisy: take the best of several windows, interleaved with what is compared to them.
double FmaPeakWindow(ThreadPool& pool, double seconds = 0.005);

}  // namespace equitile
