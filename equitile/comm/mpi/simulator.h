// What is different in SimGrid's simulator (SMPI): it runs the ranks of a job in one process, one
// at a time, on a clock of its own. Seen only by comm/mpi, which is compiled once for a real MPI
// and once for the simulator.
#pragma once

#include <mpi.h>

#include <cstdlib>
#include <string_view>

namespace equitile::mpi {

#ifdef EQUITILE_SIMULATOR
inline constexpr bool kSimulator = true;
// Work of so many seconds at the speed that the platform file calls nominal.
inline void ElapseSimulated(double seconds) { smpi_execute(seconds); }
#else
inline constexpr bool kSimulator = false;
inline void ElapseSimulated(double) {}
#endif

// Set by scripts/cluster-sim --compute model, which also turns the simulator's stopwatch off.
inline bool ModelsCompute() {
  const char* compute = std::getenv("EQUITILE_SIMULATED_COMPUTE");
  return kSimulator && compute != nullptr && std::string_view(compute) == "model";
}

}  // namespace equitile::mpi
