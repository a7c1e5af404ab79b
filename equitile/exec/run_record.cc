#include "equitile/exec/run_record.h"

#include <algorithm>

namespace equitile {

void RunRecord::Clear(size_t stages) {
  begin = end = 0;
  for (auto* times : {&inputs_sent, &passed, &returned}) times->assign(stages, 0);
  waits.clear();
  events.clear();
}

double ExposedSeconds(Communicator& comm, const RunRecord& record) {
  const size_t stages = record.inputs_sent.size(), ranks = static_cast<size_t>(comm.size());
  // [ranks][3][stages]; every rank fills in its own, the sum is the table.
  std::vector<double> sent(ranks * 3 * stages, 0);
  const std::vector<double>* own[] = {&record.inputs_sent, &record.passed, &record.returned};
  auto at = [&](size_t rank, size_t kind, size_t stage) -> double& {
    return sent[(rank * 3 + kind) * stages + stage];
  };
  for (size_t kind = 0; kind < 3; ++kind) {
    for (size_t stage = 0; stage < stages; ++stage)
      at(static_cast<size_t>(comm.rank()), kind, stage) = (*own[kind])[stage] - record.begin;
  }
  comm.AllReduce(sent, Reduce::kSum);
  double exposed = 0;
  for (const RunWait& wait : record.waits) {
    const double sent_at = at(static_cast<size_t>(wait.peer), static_cast<size_t>(wait.what),
                              static_cast<size_t>(wait.stage));
    const double end = wait.end - record.begin;
    exposed += end - std::min(end, std::max(sent_at, wait.begin - record.begin));
  }
  return exposed;
}

}  // namespace equitile
