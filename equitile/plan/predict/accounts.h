// What a Program costs apart from time: work, bytes, messages and buffers of every rank, by walking
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/program.h"
#include "equitile/plan/predict/stage_work.h"
#include "equitile/plan/predict/traffic.h"

namespace equitile {

struct Accounts {
  StageWork work;
  Traffic traffic;
  int64_t messages = 0;  // all that goes from one rank to another in one stage (inputs, or finished
                         // output) is one message
  // [ranks] peak bytes of packed Q, K, V and of O with log-sum-exp: inputs of the present and of
  // the next stage, output of the present one and of the one on its way home; in a ring also the
  // first chunk, which lies with the queries. Blocks that were
  // local are in it: the kernel reads them packed, too.
  std::vector<int64_t> buffer_bytes;

  int64_t BufferMax() const;
};

Accounts TakeAccounts(const Program& program, const HomeMap& homes, const BlockMask& mask,
                      const WireFormat& wire);

}  // namespace equitile
