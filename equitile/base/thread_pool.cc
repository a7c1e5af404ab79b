#include "equitile/base/thread_pool.h"

#include <limits>
#include <system_error>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/base/topology.h"

namespace equitile {
namespace {

constexpr uint32_t kStopEpoch = std::numeric_limits<uint32_t>::max();

// Polls before sleeping, some 20 to 100 microseconds depending on the processor: longer than the
// gap between two kernels of a layer, shorter than anything a user could notice. A sleeping worker
// costs the next call a system call and a wake-up.
constexpr int kSpins = 2000;

// Between two polls: looking at messages costs about a microsecond.
constexpr double kPollSeconds = 0.002;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns a value that is not `old`.
uint32_t WaitWhile(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Pause();
  }
  for (;;) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    value.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads < 1) throw InputError("[base] threads {}: must be at least 1", threads);
  // More threads than cores: who spins only keeps another from its work.
  spins_ = threads <= AllowedCores() ? kSpins : 0;
  workers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { Work(t); });
  } catch (const std::system_error& error) {
    const size_t started = workers_.size();
    Stop();
    throw Error("[base] cannot start thread {} of {}: {}", started + 2, threads, error.what());
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  epoch_.store(kStopEpoch, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Work(int thread) {
  for (uint32_t seen = 0;;) {
    seen = WaitWhile(epoch_, seen, spins_);
    if (seen == kStopEpoch) return;
    Call(thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::Call(int thread) {
  try {
    job_(thread);
  } catch (...) {
    const std::lock_guard lock(exception_mutex_);
    if (!exception_) exception_ = std::current_exception();
    failed_.store(true, std::memory_order_relaxed);
  }
}

void ThreadPool::Run(FunctionRef<void(int thread)> fn) {
  EQ_CHECK(!busy_.exchange(true, std::memory_order_acquire),
           "a thread pool was called from two threads or from inside its own call");
  job_ = fn;
  failed_.store(false, std::memory_order_relaxed);
  if (!workers_.empty()) {
    pending_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
    const uint32_t last = epoch_.load(std::memory_order_relaxed);
    epoch_.store(last + 1 == kStopEpoch ? 0 : last + 1, std::memory_order_release);
    epoch_.notify_all();
  }
  Call(0);
  for (uint32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;) {
    WaitWhile(pending_, left, spins_);
  }
  std::exception_ptr exception = std::exchange(exception_, nullptr);
  busy_.store(false, std::memory_order_release);
  if (exception) std::rethrow_exception(exception);
}

void ThreadPool::Poll() {
  if (!poll_) return;
  const double now = NowSeconds();
  if (now - polled_ < kPollSeconds) return;
  polled_ = now;
  poll_();
}

void ThreadPool::ParallelFor(int64_t tasks, FunctionRef<void(int64_t task, int thread)> fn) {
  if (tasks <= 0) return;
  if (tasks == 1) return fn(0, 0);  // nothing to share: no other thread is woken
  std::atomic<int64_t> next{Threads()};
  auto work = [&](int thread) {
    for (int64_t task = thread; task < tasks; task = next.fetch_add(1, std::memory_order_relaxed)) {
      if (failed_.load(std::memory_order_relaxed)) return;
      fn(task, thread);
      if (thread == 0) Poll();
    }
  };
  Run(work);
}

}  // namespace equitile
