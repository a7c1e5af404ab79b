// What ranks must agree on before they work together.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "equitile/comm/communicator.h"
#include "equitile/kernel/compute.h"

namespace equitile {

// What decides an Itinerary, as hashes.
struct RunIdentity {
  uint64_t mask = 0, plan = 0;
  int64_t head_dim = 0;
  Compute compute = Compute::kF32;

  friend bool operator==(const RunIdentity&, const RunIdentity&) = default;
};

// Collective. Both throw InputError on every rank, naming a rank that differs from rank 0.
void CheckAgreement(Communicator& comm, const RunIdentity& identity);

// Anything else, as hashes by name; ranks may also differ in which names they have.
void CheckSame(Communicator& comm, const std::map<std::string, uint64_t>& things);

}  // namespace equitile
