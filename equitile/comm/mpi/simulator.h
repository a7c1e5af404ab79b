// What is different in SimGrid's simulator (SMPI): it runs the ranks of a job in one process, one
// at a time, on a clock of its own. Seen only by comm/mpi, which is compiled once for a real MPI
// and once for the simulator.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

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

// [ranks] a name of each one's machine: what scripts/cluster-sim says about the platform (numbers
// with commas between), or else every rank has its own.
inline std::vector<int32_t> SimulatedNodes(int32_t ranks) {
  std::vector<int32_t> nodes(static_cast<size_t>(ranks));
  std::iota(nodes.begin(), nodes.end(), 0);
  const char* names = std::getenv("EQUITILE_SIMULATED_NODES");
  for (int32_t& node : nodes) {
    if (names == nullptr || *names == '\0') break;
    char* end = nullptr;
    node = static_cast<int32_t>(std::strtol(names, &end, 10));
    names = *end == ',' ? end + 1 : end;
  }
  return nodes;
}

}  // namespace equitile::mpi
