#include "equitile/comm/mpi/launch.h"

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

#include "equitile/comm/mpi/launcher_environment.h"
#include "equitile/comm/mpi/mpi_check.h"
#include "equitile/comm/mpi/mpi_communicator.h"

namespace equitile::mpi {
namespace {

// After a failure every rank but the one that reports it waits so long to be ended with the job,
// then takes it on itself; later ranks wait longer, so that one of them is first.
constexpr double kGraceSeconds = 3;
constexpr double kGraceSecondsPerRank = 0.2;

// Of the process, as MPI itself is; the simulator gives every rank its own copy.
struct Job {
  bool started = false;
  bool failed = false;
  std::unique_ptr<MpiCommunicator> failed_comm;  // outlives the failure: its notes may be under way
};
Job job;

void Start() {
  if (job.started) return;
  int provided = 0;
  EQ_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
  job.started = true;
  EQ_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
}

void Sleep(double seconds) {
  timespec rest = {.tv_sec = static_cast<time_t>(seconds),
                   .tv_nsec = static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  while (nanosleep(&rest, &rest) != 0) continue;
}

// Rank 0 speaks for the job while it lives.
bool Reports(int32_t rank, const RankFailure& failure) {
  const bool zero_is_lost = failure.kind == FailureKind::kLost && failure.rank == 0;
  return rank == (zero_is_lost ? 1 : 0);
}

}  // namespace

std::optional<int32_t> LaunchedRank() {
  if (!kSimulator) return RankInEnvironment();
  Start();
  int rank = 0;
  EQ_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

bool InSimulator() { return kSimulator; }

void Run(FunctionRef<void(Communicator& comm)> body, const RunOptions& options) {
  Start();
  auto comm = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, options.watchdog_seconds);
  try {
    AbortOnError(*comm, [&] {
      body(*comm);
      comm->Close();
    });
  } catch (...) {
    job.failed = true;
    job.failed_comm = std::move(comm);
    const RankFailure failure = job.failed_comm->failure().value();
    const int32_t rank = job.failed_comm->rank();
    // In the simulator the first to fail goes on to End before another rank runs. Elsewhere: no MPI
    // call while waiting: receives may be under way into memory that is gone by now.
    if (!kSimulator && !Reports(rank, failure)) Sleep(kGraceSeconds + kGraceSecondsPerRank * rank);
    throw CommError(failure);
  }
}

int End(int exit_code) {
  if (!job.started) return exit_code;
  if (job.failed && kSimulator) {
    std::fflush(nullptr);
    std::_Exit(exit_code == 0 ? 1 : exit_code);  // one process; its MPI_Abort would exit with 0
  }
  if (job.failed) {
    MPI_Abort(MPI_COMM_WORLD, exit_code == 0 ? 1 : exit_code);
  } else {
    MPI_Finalize();
  }
  return exit_code;
}

}  // namespace equitile::mpi
