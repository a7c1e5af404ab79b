// What ranks must agree on before they work together.
#pragma once

#include "equitile/comm/communicator.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/plan/plan.h"

namespace equitile {

// Collective. Throws InputError on every rank, naming a rank that differs from rank 0.
void CheckAgreement(Communicator& comm, const Plan& plan, const BlockMask& mask, int64_t head_dim);

}  // namespace equitile
