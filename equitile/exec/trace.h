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

  double Now() const { return comm_.Now(); }

  // Collective. On rank 0 everybody's spans, [ranks]; elsewhere nothing.
  std::vector<std::vector<TraceSpan>> Gather() const;

 private:
  Communicator& comm_;
  double zero_ = 0;
  std::vector<TraceSpan> spans_;
};

// What this rank does while the scope lives; nothing where there is no trace.
class TraceScope {
 public:
  TraceScope(Trace* trace, RunEvent::Kind kind)
      : trace_(trace), event_{.kind = kind, .begin = trace != nullptr ? trace->Now() : 0.0} {}
  ~TraceScope() {
    if (trace_ == nullptr) return;
    event_.end = trace_->Now();
    trace_->Add(event_, -1, -1);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* trace_;
  RunEvent event_;
};

}  // namespace equitile
