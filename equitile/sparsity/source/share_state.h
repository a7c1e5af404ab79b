// A state from rank 0, which has read it from a file, to all ranks.
#pragma once

#include "equitile/comm/communicator.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

// Collective: rank 0's on every rank.
SourceState ShareState(Communicator& comm, SourceState state);

}  // namespace equitile
