#include "equitile/base/turns.h"

#include <time.h>

#include <algorithm>

#include "equitile/base/timer.h"

namespace equitile {
namespace {

// Of the calling thread, on which a pool of one computes.
double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void TimeInTurns(int threads, double seconds, FunctionRef<void(size_t work)> run,
                 std::span<TurnTimes> times) {
  const auto clock = threads == 1 ? ProcessorSeconds : NowSeconds;
  const Stopwatch round;
  do {
    for (size_t work = 0; work < times.size(); ++work) {
      const Stopwatch watch;
      const double begin = clock();
      run(work);
      times[work].least = std::min(times[work].least, clock() - begin);
      times[work].seconds.push_back(watch.Seconds());
    }
  } while (round.Seconds() < seconds);
}

}  // namespace equitile
