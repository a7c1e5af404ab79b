// The way into MPI for programs that do not see mpi.h: which file stands behind it, launch.cc or
// no_mpi.cc, is chosen by what is linked.
#pragma once

#include <cstdint>
#include <optional>

#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"

namespace equitile::mpi {

// This process's rank if a launcher (mpirun, srun) or the simulator started it, and nothing
// otherwise. Local.
std::optional<int32_t> LaunchedRank();

// True in the simulator, where ranks share one process.
bool InSimulator();

struct RunOptions {
  // A rank that gives no sign of life for so long counts as lost; 0 watches nobody. In the
  // simulator nobody is watched.
  double watchdog_seconds = 60;
};

// Calls body(communicator) on this process's rank; collective over all processes of the job.
// Starts MPI if that has not happened. Where a rank has failed this throws on one rank, which is to
// report it and then to call End; the other ranks wait there for the end of the job (and throw,
// too, should nobody have ended it after some seconds).
void Run(FunctionRef<void(Communicator& comm)> body, const RunOptions& options = {});

// The last call of a program: leaves MPI if it was started, or, after a failure, ends the whole job
// with this exit code. Returns the code.
int End(int exit_code);

}  // namespace equitile::mpi
