// A program for mpirun: every rank of the job says which one it is, in order.
#include <equitile/comm/mpi/launch.h>

#include <cstdio>

int main() {
  using namespace equitile;
  mpi::Run([](Communicator& comm) {
    for (int32_t rank = 0; rank < comm.size(); ++rank) {
      if (rank == comm.rank()) std::printf("rank %d of %d\n", rank, comm.size());
      std::fflush(stdout);
      comm.Barrier();
    }
  });
  return mpi::End(0);
}
