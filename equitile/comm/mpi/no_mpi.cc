// Stands behind launch.h in programs that are built without MPI.
#include "equitile/base/error.h"
#include "equitile/comm/mpi/launch.h"
#include "equitile/comm/mpi/launcher_environment.h"

namespace equitile::mpi {

std::optional<int32_t> LaunchedRank() { return RankInEnvironment(); }

bool InSimulator() { return false; }

void Run(FunctionRef<void(Communicator&)>, const RunOptions&) {
  throw InputError(
      "[comm] started by an MPI launcher, but built without MPI; start it without one, or install "
      "libopenmpi-dev and build again");
}

int End(int exit_code) { return exit_code; }

}  // namespace equitile::mpi
