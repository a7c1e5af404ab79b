// What all ranks did and when, brought together on rank 0: the material of `--trace`.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/exec/run_record.h"

namespace equitile {

// Seconds from the moment at which the trace began, which is one moment on all ranks.
struct TraceSpan {
  RunEvent event;
  int32_t step = -1, layer = -1;
};

class Trace {
 public:
  // Collective: a barrier makes the clocks' common zero.
  explicit Trace(Communicator& comm);

  // Local.
  void Add(const RunRecord& record, int32_t step, int32_t layer);
  void Add(RunEvent event, int32_t step, int32_t layer);

  // Collective. On rank 0 everybody's spans, [ranks]; elsewhere nothing.
  std::vector<std::vector<TraceSpan>> Gather() const;

 private:
  Communicator& comm_;
  double zero_ = 0;
  std::vector<TraceSpan> spans_;
};

}  // namespace equitile
