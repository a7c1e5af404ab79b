// Ranks as threads of one process: for tests, sanitizers and machines with several memory nodes.
#pragma once

#include <cstdint>

#include "equitile/base/function_ref.h"
#include "equitile/comm/comm_error.h"
#include "equitile/comm/communicator.h"

namespace equitile {

struct RunRanksOptions {
  // A rank that gives no sign of life for so long counts as lost; 0 watches nobody.
  double watchdog_seconds = 60;
  // A thread cannot be ended from outside. Called (once, by the calling thread) when lost ranks
  // have not come back a second after all others have ended: a program prints the error and leaves
  // the process. Without it, or when it returns, RunRanks waits for the lost ranks.
  FunctionRef<void(const CommError& error)> on_lost;
};

// Calls body(communicator) on `ranks` threads and returns when all have ended. When a rank throws,
// every other rank gets a CommError out of whatever call it waits in or makes next; the first
// failure is thrown from here: an InputError as it was, anything else as CommError that names rank
// and place. So is a thread that cannot be started.
void RunRanks(int32_t ranks, FunctionRef<void(Communicator& comm)> body,
              const RunRanksOptions& options = {});

}  // namespace equitile
