// The settings of a bench, timed in groups: those that differ in their arithmetic only take turns
// beside the machine's peak, each once its answer was found right; and how far all of them are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/peak_timing.h"
#include "apps/cli/progress.h"

namespace equitile {

class CheckedTurns {
 public:
  // what: "bench linear"
  CheckedTurns(std::string what, size_t settings);

  // Before the numbers of the next group are made.
  void Prepare();

  // Runs each of a group's works and checks it, then times all of them: run(0), check(0), ... A
  // wrong answer is not timed: check throws. doing: for progress.
  std::vector<PeakTiming> Time(ThreadPool& pool, size_t works, FunctionRef<void(size_t work)> run,
                               FunctionRef<void(size_t work)> check, std::string_view doing);

 private:
  Progress progress_;
  int64_t done_ = 0, total_;  // settings
};

}  // namespace equitile
