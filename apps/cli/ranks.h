// Where a command's ranks come from: it alone, threads of this process (--ranks N), or processes
// that a launcher started.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"

namespace equitile {

// Flags of commands that run on ranks.
struct RanksRequest {
  std::optional<int64_t> ranks;    // --ranks
  std::optional<int64_t> threads;  // -t,--threads, per rank
  double watchdog_seconds = 60;    // --watchdog
};

// --ranks and --threads are left out for commands that give them a meaning of their own.
enum class RanksFlag : uint8_t { kAll, kWatchdogOnly };
void AddRanks(CLI::App& app, RanksRequest& request, RanksFlag flags = RanksFlag::kAll);

// True under mpirun and in the simulator.
bool UnderLauncher();

// True for the process that may write to stdout and complain to stderr before its ranks run: the
// only one, or the launcher's rank 0.
bool IsFirstProcess();

// Threads for each of `ranks` ranks in this process: as asked, else the allowed cores / ranks on
// this node, at least 1; in the simulator always 1.
int ThreadsPerRank(const RanksRequest& request, int64_t ranks);

// Calls body(communicator, threads) on every rank; collective. What can fail on one rank only
// belongs inside; only rank 0 writes to stdout. The failure of any rank is thrown here, once for
// the job, on one process: as CommError, or as what it was where no other process has to be told.
// InputError for --ranks under a launcher, and for threads > 1 in the simulator.
void RunOnRanks(const RanksRequest& request,
                FunctionRef<void(Communicator& comm, int threads)> body);

}  // namespace equitile
