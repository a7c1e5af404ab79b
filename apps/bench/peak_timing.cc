#include "apps/bench/peak_timing.h"

#include <algorithm>
#include <vector>

#include "equitile/base/timer.h"
#include "equitile/kernel/fma_peak.h"

namespace equitile {
namespace {

// Rounds of one window and some runs each: a median that one or two disturbed rounds do not move.
// Short work is repeated within a round, for a few times the length of a window.
constexpr int64_t kRounds = 6;
constexpr double kRoundSeconds = 0.03;

}  // namespace

PeakTiming TimeBesidePeak(ThreadPool& pool, FunctionRef<void()> work,
                          FunctionRef<void(int64_t done, int64_t total)> report) {
  PeakTiming timing;
  std::vector<double> seconds;
  auto window = [&] { timing.peak_gflops = std::max(timing.peak_gflops, FmaPeakWindow(pool)); };
  for (int64_t round = 0; round < kRounds; ++round) {
    window();
    const Stopwatch round_watch;
    do {
      const Stopwatch watch;
      work();
      seconds.push_back(watch.Seconds());
    } while (round_watch.Seconds() < kRoundSeconds);
    if (report) report(round + 1, kRounds);
  }
  window();
  timing.runs = static_cast<int64_t>(seconds.size());
  const auto middle = seconds.begin() + (timing.runs - 1) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  timing.seconds = *middle;
  return timing;
}

}  // namespace equitile
