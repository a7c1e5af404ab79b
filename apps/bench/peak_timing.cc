#include "apps/bench/peak_timing.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "equitile/base/timer.h"
#include "equitile/kernel/fma_peak.h"

namespace equitile {
namespace {

// Rounds of one window and some runs each: a median that one or two disturbed rounds do not move.
// Short work is repeated within a round, for a few times the length of a window.
constexpr int64_t kRounds = 6;
constexpr double kRoundSeconds = 0.03;

// Of the calling thread, on which a pool of one computes.
double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

PeakTiming TimeBesidePeak(ThreadPool& pool, FunctionRef<void()> work,
                          FunctionRef<void(int64_t done, int64_t total)> report) {
  return TimeInTurnsBesidePeak(pool, 1, [&](size_t) { work(); }, report)[0];
}

std::vector<PeakTiming> TimeInTurnsBesidePeak(
    ThreadPool& pool, size_t works, FunctionRef<void(size_t work)> run,
    FunctionRef<void(int64_t done, int64_t total)> report) {
  const auto clock = pool.Threads() == 1 ? ProcessorSeconds : NowSeconds;
  std::vector<std::vector<double>> seconds(works);
  std::vector<double> least(works, std::numeric_limits<double>::infinity());
  double peak = 0.0;
  for (int64_t round = 0; round < kRounds; ++round) {
    peak = std::max(peak, FmaPeakWindow(pool));
    const Stopwatch round_watch;
    do {
      for (size_t work = 0; work < works; ++work) {
        const Stopwatch watch;
        const double begin = clock();
        run(work);
        least[work] = std::min(least[work], clock() - begin);
        seconds[work].push_back(watch.Seconds());
      }
    } while (round_watch.Seconds() < kRoundSeconds * static_cast<double>(works));
    if (report) report(round + 1, kRounds);
  }
  peak = std::max(peak, FmaPeakWindow(pool));
  std::vector<PeakTiming> timings;
  for (size_t work = 0; work < works; ++work) {
    std::vector<double>& runs = seconds[work];
    std::ranges::sort(runs);
    timings.push_back({.seconds = runs[(runs.size() - 1) / 2],
                       .least = least[work],
                       .peak_gflops = peak,
                       .runs = std::ssize(runs)});
  }
  return timings;
}

}  // namespace equitile
