// What ranks must agree on before they work together.
#pragma once

#include <cstdint>

#include "equitile/comm/communicator.h"

namespace equitile {

// What decides an Itinerary, as hashes.
struct RunIdentity {
  uint64_t mask = 0, plan = 0;
  int64_t head_dim = 0;

  friend bool operator==(const RunIdentity&, const RunIdentity&) = default;
};

// Collective. Throws InputError on every rank, naming a rank that differs from rank 0.
void CheckAgreement(Communicator& comm, const RunIdentity& identity);

}  // namespace equitile
