#include "equitile/comm/threads/run_ranks.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "equitile/base/timer.h"
#include "equitile/comm/threads/threads_communicator.h"
#include "equitile/comm/threads/world.h"

namespace equitile {
namespace {

// How long lost ranks may take to come back once all others have ended, and how often to look
// whether they have.
constexpr std::chrono::milliseconds kGrace{1000}, kLook{100};

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
  bool WaitFor(int32_t ended, std::chrono::milliseconds limit) {
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

// Whether some rank was lost, and every rank has ended or is silent.
bool OnlyLostAreLeft(threads::World& world, double watchdog_seconds) {
  if (!world.Failed() || world.Failure().kind != FailureKind::kLost) return false;
  const double now = NowSeconds();
  for (int32_t r = 0; r < world.size(); ++r) {
    const threads::RankState& rank = world.At(r);
    if (!rank.ended && now - rank.heard <= watchdog_seconds) return false;
  }
  return true;
}

}  // namespace

void RunRanks(int32_t ranks, FunctionRef<void(Communicator& comm)> body,
              const RunRanksOptions& options) {
  EQ_CHECK(ranks >= 1, "{} ranks", ranks);
  threads::World world(ranks);
  Ends ends;
  std::vector<std::exception_ptr> input_errors(static_cast<size_t>(ranks));
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(ranks));
  try {
    for (int32_t r = 0; r < ranks; ++r) {
      workers.emplace_back([&, r] {
        RunBody(world, r, body, options, input_errors[static_cast<size_t>(r)]);
        ends.Add();
      });
    }
  } catch (const std::exception& error) {  // no thread, or no memory for one
    world.Fail({.rank = static_cast<int32_t>(workers.size()),
                .place = {},
                .kind = FailureKind::kFailed,
                .cause = fmt::format("[comm] cannot start a thread for it: {}", error.what())});
  }
  const auto started = static_cast<int32_t>(workers.size());
  while (!ends.WaitFor(started, kLook)) {
    if (!options.on_lost || !OnlyLostAreLeft(world, options.watchdog_seconds)) continue;
    if (!ends.WaitFor(started, kGrace)) options.on_lost(CommError(world.Failure()));
    break;
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
