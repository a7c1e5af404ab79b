// How much of the attention the masks in force hold: measured on sampled rows, since a sparse run
// cannot know what it has left out and a mean over predictions promises nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/sparsity/mass/mass_probe.h"

namespace equitile {

class MassMeter {
 public:
  // q_blocks: how many rows of each lane are looked at, from 1 on; as many as there are: all.
  MassMeter(Executor& executor, int64_t head_dim, int64_t q_blocks)
      : probe_(executor, head_dim), comm_(executor.comm()), q_blocks_(q_blocks) {}

  // Collective. [lanes] the share of the sampled queries' attention that falls on kept blocks. The
  // same on any number of ranks.
  std::vector<double> HeldBy(const SelfAttentionCall& call, const LaneMasks& masks);

 private:
  MassProbe probe_;
  Communicator& comm_;
  int64_t q_blocks_;
  LaneMasks sample_;  // of the last call: all blocks of the sampled rows
};

// Which rows of a lane: `count` different ones of `q_blocks`, ascending, the same in every run.
std::vector<int64_t> SampledRows(int64_t lane, int64_t q_blocks, int64_t count);

}  // namespace equitile
