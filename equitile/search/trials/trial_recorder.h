// One call of self-attention, tried with all options: the recording side of a search, behind the
// same seam as attention itself. Whole lanes come together on one rank each, and every rank gets
// all results.
#pragma once

#include <cstdint>

#include "equitile/model/wan/self_attention.h"
#include "equitile/search/choice/error_table.h"
#include "equitile/search/choice/pattern_choice.h"
#include "equitile/search/trials/head_trials.h"
#include "equitile/search/trials/lane_gather.h"

namespace equitile {

// Lanes that are gathered at once on a rank; beside them their copies in two orders.
inline constexpr int64_t kRoundBytes = int64_t{256} << 20;

class TrialRecorder {
 public:
  // lanes: of a call, whose batch items are the passes of one prompt after the other. All must
  // outlive it.
  TrialRecorder(HeadTrials& trials, Lanes lanes, int64_t passes, int64_t head_dim,
                Communicator& comm, ThreadPool& pool);

  struct Place {
    int64_t first_prompt = 0, step = 0;  // in the table
  };
  // Collective. The rows that are looked at follow from the place and the layer.
  void Record(const SelfAttentionCall& call, const ColumnMasses& columns, const Place& place,
              ErrorTable& table);

 private:
  // [lanes][mean square, then mse, variance and density of every option], on every rank.
  std::vector<double> Try(const SelfAttentionCall& call, const ColumnMasses& columns,
                          const Place& place);

  HeadTrials& trials_;
  Lanes lanes_;
  int64_t passes_;
  Communicator& comm_;
  LaneGather gather_;
};

}  // namespace equitile
