#include "equitile/exec/run_record.h"

#include <algorithm>
#include <span>

namespace equitile {

void RunRecord::Clear(size_t stages) {
  begin = end = 0;
  for (auto* times : {&inputs_sent, &passed, &returned}) times->assign(stages, 0);
  waits.clear();
  events.clear();
}

double ExposedSeconds(Communicator& comm, const RunRecord& record) {
  const size_t stages = record.inputs_sent.size();
  const std::vector<double>* own[] = {&record.inputs_sent, &record.passed, &record.returned};
  std::vector<double> sent(3 * stages);  // [3][stages] of one rank after the other
  double exposed = 0;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {
    for (size_t i = 0; rank == comm.rank() && i < sent.size(); ++i)
      sent[i] = (*own[i / stages])[i % stages] - record.begin;
    comm.Broadcast(std::as_writable_bytes(std::span(sent)), rank);
    for (const RunWait& wait : record.waits) {
      if (wait.peer != rank) continue;
      const double sent_at =
          sent[static_cast<size_t>(wait.what) * stages + static_cast<size_t>(wait.stage)];
      const double end = wait.end - record.begin;
      exposed += end - std::min(end, std::max(sent_at, wait.begin - record.begin));
    }
  }
  return exposed;
}

}  // namespace equitile
