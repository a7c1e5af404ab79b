// The threads of one rank: an object that is handed down by reference, so that several ranks in one
// process have one each.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "equitile/base/function_ref.h"

namespace equitile {

// One caller at a time, and no call from inside a call (checked). The calling thread works too, as
// thread 0: a pool of one creates no thread and runs everything inline. If any thread throws, the
// call ends when all threads are done, and throws the first exception.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // InputError below 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int Threads() const { return static_cast<int>(workers_.size()) + 1; }

  // fn(thread) once on each thread.
  void Run(FunctionRef<void(int thread)> fn);

  // fn(task, thread) for every task in [0, tasks): thread t begins with task t, the others are
  // handed out in ascending order to whoever is free. So with tasks >= Threads() every thread
  // computes, however late it wakes. After an exception no further task is begun.
  void ParallelFor(int64_t tasks, FunctionRef<void(int64_t task, int thread)> fn);

  // Called by the calling thread between its tasks of a ParallelFor, now and then (every few
  // milliseconds where tasks are that short): long layers show a sign of life here. What it throws
  // ends the ParallelFor. Null: none.
  void SetPoll(std::function<void()> poll) { poll_ = std::move(poll); }
  // The same amid a long task of the calling thread.
  void Poll();

 private:
  void Work(int thread);
  void Call(int thread);
  void Stop();

  std::vector<std::thread> workers_;
  FunctionRef<void(int)> job_;
  int spins_ = 0;
  std::atomic<bool> busy_{false};
  std::atomic<bool> failed_{false};
  std::mutex exception_mutex_;
  std::exception_ptr exception_;
  std::function<void()> poll_;
  double polled_ = 0;
  // Each on its own cache line: workers poll the first while others count down the second.
  alignas(64) std::atomic<uint32_t> epoch_{0};    // one more per call; kStopEpoch ends the workers
  alignas(64) std::atomic<uint32_t> pending_{0};  // workers that have not finished the call
};

}  // namespace equitile
