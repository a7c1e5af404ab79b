#include "apps/cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/cli/command_line.h"
#include "apps/cli/flags.h"
#include "equitile/base/error.h"
#include "equitile/base/topology.h"
#include "equitile/comm/mpi/launch.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/comm/threads/run_ranks.h"

namespace equitile {
namespace {

constexpr int64_t kMaxRanks = 1024;
constexpr int64_t kMaxThreads = 1024;
constexpr double kMaxWatchdogSeconds = 1e6;

using Body = FunctionRef<void(Communicator& comm, int threads)>;

void RunUnderLauncher(const RanksRequest& request, Body body) {
  const int threads = ThreadsPerRank(request, 1);
  mpi::Run([&](Communicator& comm) { body(comm, threads); },
           {.watchdog_seconds = request.watchdog_seconds});
}

// The lost rank's thread can only be ended with the process.
[[noreturn]] void LeaveWith(const CommError& error) {
  fmt::print(stderr, "equitile: {}\n", error.what());
  std::fflush(nullptr);
  std::_Exit(kFailed);
}

}  // namespace

void AddRanks(CLI::App& app, RanksRequest& request, RanksFlag flags) {
  if (flags == RanksFlag::kAll) {
    AddNumber(app, "--ranks", request.ranks, {.min = 1, .max = kMaxRanks},
              "ranks inside this process (not under mpirun)");
    AddNumber(app, "-t,--threads", request.threads, {.min = 1, .max = kMaxThreads},
              "threads per rank (default: allowed cores / ranks on this node)");
  }
  AddNumber(app, "--watchdog", request.watchdog_seconds, {.min = 0, .max = kMaxWatchdogSeconds},
            "seconds without a sign of life after which a rank counts as lost; 0: never");
}

bool UnderLauncher() { return mpi::LaunchedRank().has_value(); }

bool IsFirstProcess() { return mpi::LaunchedRank().value_or(0) == 0; }

int ThreadsPerRank(const RanksRequest& request, int64_t ranks) {
  if (mpi::InSimulator()) {
    if (request.threads.value_or(1) != 1) {
      throw InputError("--threads {}: the simulator runs one thread per rank", *request.threads);
    }
    return 1;
  }
  if (request.threads) return static_cast<int>(*request.threads);
  return std::max(1, DefaultThreads() / static_cast<int>(ranks));
}

void RunOnRanks(const RanksRequest& request, Body body) {
  if (UnderLauncher()) {
    if (request.ranks) {
      throw InputError(
          "--ranks {}: the ranks are the processes that the launcher started; leave "
          "it out under mpirun",
          *request.ranks);
    }
    return RunUnderLauncher(request, body);
  }
  const int64_t ranks = request.ranks.value_or(1);
  const int threads = ThreadsPerRank(request, ranks);
  if (ranks == 1) {
    SoloCommunicator comm;
    return body(comm, threads);
  }
  const auto leave = [](const CommError& error) { LeaveWith(error); };
  RunRanks(static_cast<int32_t>(ranks), [&](Communicator& comm) { body(comm, threads); },
           {.watchdog_seconds = request.watchdog_seconds, .on_lost = leave});
}

}  // namespace equitile
