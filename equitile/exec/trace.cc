#include "equitile/exec/trace.h"

#include <algorithm>

namespace equitile {

Trace::Trace(Communicator& comm) : comm_(comm) {
  comm.Barrier();
  zero_ = comm.Now();
}

void Trace::Add(const RunRecord& record, int32_t step, int32_t layer) {
  spans_.reserve(spans_.size() + record.events.size());
  for (const RunEvent& event : record.events) Add(event, step, layer);
}

void Trace::Add(RunEvent event, int32_t step, int32_t layer) {
  // Ranks leave a barrier one after the other; nothing is before the zero that all agree on.
  event.begin = std::max(0.0, event.begin - zero_);
  event.end = std::max(event.begin, event.end - zero_);
  spans_.push_back({.event = event, .step = step, .layer = layer});
}

std::vector<std::vector<TraceSpan>> Trace::Gather() const {
  constexpr int32_t kTag = 0;
  std::vector<uint64_t> counts(static_cast<size_t>(comm_.size()), 0);
  counts[static_cast<size_t>(comm_.rank())] = spans_.size();
  comm_.AllReduce(std::span<uint64_t>(counts), Reduce::kSum);
  std::vector<std::vector<TraceSpan>> all;
  if (comm_.rank() != 0) {
    CommRequest send = comm_.Send(std::as_bytes(std::span(spans_)), 0, kTag);
    comm_.Wait(send);
    return all;
  }
  all.push_back(spans_);
  for (int32_t rank = 1; rank < comm_.size(); ++rank) {
    auto& spans = all.emplace_back(static_cast<size_t>(counts[static_cast<size_t>(rank)]));
    CommRequest receive = comm_.Receive(std::as_writable_bytes(std::span(spans)), rank, kTag);
    comm_.Wait(receive);
  }
  return all;
}

}  // namespace equitile
