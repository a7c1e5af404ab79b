// What the threads of one attention call owe each other while they work or wait: the caller's poll,
// and the news that one of them failed.
#pragma once

#include <atomic>
#include <thread>

#include "equitile/base/function_ref.h"
#include "equitile/base/timer.h"

namespace equitile {

class Progress {
 public:
  // Ends the work of a thread that waits for one that failed. It ends there, so that the caller
  // gets the exception of the one that failed, whichever is thrown first.
  struct Abandoned {};

  explicit Progress(FunctionRef<void()> poll) : poll_(poll) {}

  void Fail() { failed_ = true; }
  bool Failed() const { return failed_; }

  // Polls, on the calling thread (0), when the last poll is a while ago.
  void Tick(int thread) {
    constexpr double kPollSeconds = 200e-6;
    if (thread != 0 || !poll_) return;
    const double now = NowSeconds();
    if (now - last_poll_ < kPollSeconds) return;
    poll_();
    last_poll_ = NowSeconds();
  }

  // Throws Abandoned when another thread has failed.
  template <class Condition>
  void WaitUntil(const Condition& condition, int thread) {
    while (!condition()) {
      if (failed_) throw Abandoned();
      Tick(thread);
      std::this_thread::yield();
    }
  }

 private:
  const FunctionRef<void()> poll_;
  double last_poll_ = 0.0;
  std::atomic<bool> failed_{false};
};

}  // namespace equitile
