// dbsp+: the layout of dbsp, better. Lanes are balanced further, every Ulysses group has its own
// block plan, and block plans are searched for on what a ring really takes, with a price per moved
// block (docs/design/0011-dbsp.md).
#pragma once

#include <cstdint>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/planners/dbsp/dbsp.h"

namespace equitile {

struct DbspPlusOptions {
  // What moving one block may cost, in kept blocks of the busiest rank's time; negative: lanes /
  // (4·U·R), which is what it costs in f32 with blocks of 64 tokens, 100 GFLOP/s per rank and
  // 100 Gb/s between them.
  double price = -1;
  // Balance beyond this rho is worth no movement; 0: beyond 1.01, or the rho of dbsp if that is
  // lower; less balance where dbsp would move fewer blocks.
  double target_rho = 0;
  // More sweeps find fewer moves; time is proportional.
  int64_t sweeps = 48;
  DbspBalance balance = DbspBalance::kBoth;  // what is left out stays contiguous
};

// rho is never above that of MakeStaticLayout, and that layout is what is returned where nothing
// better was found. Deterministic.
DbspLayout MakeDbspPlus(const BlockMask& mask, int64_t ulysses, int64_t ring,
                        const DbspPlusOptions& options = {});

}  // namespace equitile
