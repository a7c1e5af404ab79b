// What the launchers of MPI leave in the environment; apart from MPI, which is not started to find
// out.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace equitile::mpi {

// The rank that Open MPI, MPICH or PMIx gave this process; nothing without a launcher.
inline std::optional<int32_t> RankInEnvironment() {
  if (!std::getenv("OMPI_COMM_WORLD_SIZE") && !std::getenv("PMI_SIZE") &&
      !std::getenv("PMIX_RANK")) {
    return std::nullopt;
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    int32_t rank = 0;
    const char* end = text + std::strlen(text);
    if (std::from_chars(text, end, rank).ptr == end && rank >= 0) return rank;
  }
  return 0;
}

}  // namespace equitile::mpi
