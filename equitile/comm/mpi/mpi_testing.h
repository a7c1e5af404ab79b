// For gtest cases that all ranks of an MPI job run in step (files named *_mpi_test.cc).
#pragma once

#include "equitile/comm/communicator.h"

namespace equitile {

// The job's communicator. A case must leave no transfer under way, and use no ASSERT that only some
// ranks would leave by.
Communicator& MpiTestRanks();

}  // namespace equitile
