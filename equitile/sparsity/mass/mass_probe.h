// Exact block masses of a layer, from an additional run of it whose output nobody uses: a sparse
// run sees only what it keeps, and a layout that splits rows does not see whole sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/exec/executor.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/core/plan.h"

namespace equitile {

// All blocks, in the orders of `masks`.
LaneMasks AllBlocksLike(const LaneMasks& masks);

class MassProbe {
 public:
  // The executor must outlive it.
  MassProbe(Executor& executor, int64_t head_dim) : executor_(executor), head_dim_(head_dim) {}

  // Collective. Of the rows of `masks` that this rank has computed, for the blocks that they keep;
  // masks without tails. Writes nothing of the call's.
  std::vector<RowMasses> Run(const SelfAttentionCall& call, const LaneMasks& masks);

 private:
  Executor& executor_;
  int64_t head_dim_;
  uint64_t planned_for_ = 0;  // hash of masks
  Plan plan_;                 // for them; computes rows whole
  bool plan_is_set_ = false;
  std::vector<float> unused_;  // output
};

// Collective: masses of dense rows, each of which one rank has computed, on every rank. [lanes, q
// blocks, kv blocks], 0 in rows that nobody has computed.
std::vector<float> GatherMasses(Communicator& comm, const BlockMask& shape,
                                std::span<const RowMasses> rows);

}  // namespace equitile
