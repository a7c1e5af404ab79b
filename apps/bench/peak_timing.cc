#include "apps/bench/peak_timing.h"

#include <algorithm>
#include <vector>

#include "equitile/base/turns.h"
#include "equitile/kernel/simd/fma_peak.h"

namespace equitile {
namespace {

// Rounds of one window and some runs each: a median that one or two disturbed rounds do not move.
// Short work is repeated within a round, for a few times the length of a window.
constexpr int64_t kRounds = 6;
constexpr double kRoundSeconds = 0.03;

}  // namespace

PeakTiming TimeBesidePeak(ThreadPool& pool, FunctionRef<void()> work,
                          FunctionRef<void(int64_t done, int64_t total)> report) {
  return TimeInTurnsBesidePeak(
      pool, 1, [&](size_t) { work(); }, report)[0];
}

std::vector<PeakTiming> TimeInTurnsBesidePeak(
    ThreadPool& pool, size_t works, FunctionRef<void(size_t work)> run,
    FunctionRef<void(int64_t done, int64_t total)> report) {
  std::vector<TurnTimes> times(works);
  double peak = 0.0;
  for (int64_t round = 0; round < kRounds; ++round) {
    peak = std::max(peak, FmaPeakWindow(pool));
    TimeInTurns(pool.Threads(), kRoundSeconds * static_cast<double>(works), run, times);
    if (report) report(round + 1, kRounds);
  }
  peak = std::max(peak, FmaPeakWindow(pool));
  std::vector<PeakTiming> timings;
  for (TurnTimes& time : times) {
    std::vector<double>& runs = time.seconds;
    std::ranges::sort(runs);
    timings.push_back({.seconds = runs[(runs.size() - 1) / 2],
                       .least = time.least,
                       .peak_gflops = peak,
                       .runs = std::ssize(runs)});
  }
  return timings;
}

}  // namespace equitile
