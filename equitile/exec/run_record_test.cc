#include "equitile/exec/run_record.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "equitile/comm/threads/run_ranks.h"

namespace equitile {
namespace {

// When a rank gave its message to the network, on a clock that begins with the run.
double SentAt(int32_t rank, int kind, int32_t stage) { return 1.0 + rank + 4 * kind + 2 * stage; }

// Clocks begin at different times; every rank waits once for each message of every other.
TEST(RunRecord, ExposedIsTheWaitForWhatIsUnderWay) {
  constexpr int32_t kRanks = 5, kStages = 3;
  RunRanks(kRanks, [](Communicator& comm) {
    RunRecord record;
    record.Clear(kStages);
    record.begin = 1000.0 * comm.rank();
    double want = 0;
    for (int kind = 0; kind < 3; ++kind) {
      auto& sent = kind == 0 ? record.inputs_sent : kind == 1 ? record.passed : record.returned;
      for (int32_t stage = 0; stage < kStages; ++stage) {
        sent[static_cast<size_t>(stage)] = record.begin + SentAt(comm.rank(), kind, stage);
        for (int32_t peer = 0; peer < kRanks; ++peer) {
          if (peer == comm.rank()) continue;
          const double begin = 3.0 + stage, end = 9.0;
          record.waits.push_back({.what = static_cast<RunWait::For>(kind),
                                  .stage = stage,
                                  .begin = record.begin + begin,
                                  .end = record.begin + end,
                                  .peer = peer});
          want += std::max(0.0, end - std::max(begin, SentAt(peer, kind, stage)));
        }
      }
    }
    EXPECT_DOUBLE_EQ(ExposedSeconds(comm, record), want);
  });
}

}  // namespace
}  // namespace equitile
