// Whole lanes on one rank each: whoever compares what a head could attend to needs all of its
// queries, keys and values. What is found out about a lane then depends on the lane alone, not on
// the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/pattern/block_grid.h"

namespace equitile {

// Q, K and V of some lanes: [lanes][tokens][head_dim] each.
struct LaneInputs {
  std::vector<int64_t> lanes;  // as the call numbers them, ascending
  int64_t tokens = 0, head_dim = 0;
  float scale = 0;
  std::vector<float> q, k, v;
};

// One per rank; its buffers serve all layers and steps.
class LaneGather {
 public:
  // Lanes go to ranks in turn, in rounds of as many per rank as stay below round_bytes, at least
  // one. comm and pool must outlive it.
  LaneGather(Lanes lanes, int64_t tokens, int64_t head_dim, int64_t round_bytes, Communicator& comm,
             ThreadPool& pool);

  int64_t Rounds() const { return rounds_; }
  int64_t LanesPerRound() const { return per_round_; }  // on one rank, at most
  // Collective, rounds ascending; what it returns is valid until the next one, and may hold no
  // lane.
  const LaneInputs& Gather(const SelfAttentionCall& call, int64_t round);

  // Of one lane on the rank that it is gathered on: what it is made of, and what was received.
  static int64_t LaneBytes(int64_t tokens, int64_t head_dim);

 private:
  std::vector<int64_t> LanesOf(int32_t rank, int64_t round) const;
  Range Home(int32_t rank, int64_t lane) const;
  void Fill(const SelfAttentionCall& call, int64_t round);
  void Unpack(int32_t from, std::span<const float> message);

  Lanes lanes_;
  int64_t tokens_, head_dim_, per_round_, rounds_;
  Communicator& comm_;
  ThreadPool& pool_;
  std::vector<std::vector<Range>> homes_;             // [ranks][batch items]
  std::vector<std::vector<float>> sends_, receives_;  // [ranks]: [lanes][q, k, v][home tokens][dim]
  LaneInputs inputs_;
};

}  // namespace equitile
