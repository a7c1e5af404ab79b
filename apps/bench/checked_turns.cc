#include "apps/bench/checked_turns.h"

#include <utility>

namespace equitile {

CheckedTurns::CheckedTurns(std::string what, size_t settings)
    : progress_(std::move(what)), total_(static_cast<int64_t>(settings)) {}

void CheckedTurns::Prepare() { progress_.Report(done_, total_, "numbers and their check"); }

std::vector<PeakTiming> CheckedTurns::Time(ThreadPool& pool, size_t works,
                                           FunctionRef<void(size_t work)> run,
                                           FunctionRef<void(size_t work)> check,
                                           std::string_view doing) {
  for (size_t work = 0; work < works; ++work) {
    run(work);
    check(work);
  }
  const auto count = static_cast<int64_t>(works);
  const std::vector<PeakTiming> timings =
      TimeInTurnsBesidePeak(pool, works, run, [&](int64_t round, int64_t rounds) {
        progress_.Report(done_ * rounds + round * count, total_ * rounds, doing);
      });
  done_ += count;
  return timings;
}

}  // namespace equitile
