// What messages between ranks take. Apart from calibrate.cc, which measures what one rank does
// alone.
#pragma once

#include "equitile/comm/communicator.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

// Collective, two ranks or more; fills machine.links and machine.node_of, alike on all ranks. Both
// ways at once: between rank 0 and the last rank ("network"); where ranks share nodes, between two
// of one ("node"), two of different ones ("network"), and as many such pairs at once as two nodes
// have: what they get together is the "cable" if it is clearly less than that many links.
void MeasureLinks(Communicator& comm, Machine& machine);

}  // namespace equitile
