#include "equitile/comm/threads/run_ranks.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "equitile/comm/threads/threads_communicator.h"
#include "equitile/comm/threads/world.h"

namespace equitile {
namespace {

// How long a lost rank may take to come back once all others have ended.
constexpr std::chrono::seconds kGrace{1};

// Counts the threads that have ended.
class Ends {
 public:
  void Add() {
    {
      const std::lock_guard lock(mutex_);
      ++ended_;
    }
    changed_.notify_all();
  }
  void WaitFor(int32_t ended) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= ended; });
  }
  bool WaitFor(int32_t ended, std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return ended_ >= ended; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t ended_ = 0;
};

// What a rank's body threw, if it was an InputError: thrown again as it was.
void RunBody(threads::World& world, int32_t rank, FunctionRef<void(Communicator&)> body,
             const RunRanksOptions& options, std::exception_ptr& input_error) {
  threads::ThreadsCommunicator comm(world, rank, options.watchdog_seconds);
  try {
    AbortOnError(comm, [&] { body(comm); });
  } catch (const CommError&) {
  } catch (const InputError&) {
    input_error = std::current_exception();
  } catch (...) {
  }
  comm.WithdrawAll();
  world.End(rank);
}

}  // namespace

void RunRanks(int32_t ranks, FunctionRef<void(Communicator& comm)> body,
              const RunRanksOptions& options) {
  EQ_CHECK(ranks >= 1, "{} ranks", ranks);
  threads::World world(ranks);
  Ends ends;
  std::vector<std::exception_ptr> input_errors(static_cast<size_t>(ranks));
  std::vector<std::thread> workers;
  for (int32_t r = 0; r < ranks; ++r) {
    workers.emplace_back([&, r] {
      RunBody(world, r, body, options, input_errors[static_cast<size_t>(r)]);
      ends.Add();
    });
  }
  ends.WaitFor(ranks - 1);
  if (options.on_lost && world.Failed() && world.Failure().kind == FailureKind::kLost &&
      !ends.WaitFor(ranks, kGrace)) {
    options.on_lost(CommError(world.Failure()));
  }
  for (std::thread& worker : workers) worker.join();
  if (!world.Failed()) return;
  const RankFailure failure = world.Failure();
  if (const auto& error = input_errors[static_cast<size_t>(failure.rank)]) {
    std::rethrow_exception(error);
  }
  throw CommError(failure);
}

}  // namespace equitile
