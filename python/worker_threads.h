// The threads of a Python object, through forks of the process: in a child only the thread that
// forked lives on, so that it gets new ones, and must not wait for the old ones.
#pragma once

#include <unistd.h>

#include <memory>

#include "equitile/base/thread_pool.h"

namespace equitile {

class WorkerThreads {
 public:
  WorkerThreads() = default;
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;
  ~WorkerThreads() { ForgetThoseOfParent(); }

  ThreadPool& Pool(int threads) {
    ForgetThoseOfParent();
    if (!pool_ || pool_->Threads() != threads) pool_ = std::make_unique<ThreadPool>(threads);
    process_ = ::getpid();
    return *pool_;
  }

 private:
  void ForgetThoseOfParent() {
    if (pool_ && process_ != ::getpid()) static_cast<void>(pool_.release());
  }

  std::unique_ptr<ThreadPool> pool_;
  pid_t process_ = 0;
};

}  // namespace equitile
