// Numbers of one rank's home tokens for `equitile bench parallel`, and whether the answer is right:
// any rank can make any token's numbers again, so that no rank needs them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/thread_pool.h"
#include "equitile/exec/executor.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {

class ParallelWorkload {
 public:
  ParallelWorkload(const LaneMasks& masks, const PlanOptions& options, int64_t head_dim,
                   int32_t rank, DType wire, Compute compute, ThreadPool& pool);

  const LayerCall& Call() const { return call_; }

  // Collective: some queries of every rank against a computation in double. Throws Error if one is
  // wrong; nothing wrong is timed.
  void Check(Communicator& comm, const Itinerary& part, const std::string& planner) const;

 private:
  void Fill(uint64_t tensor, ThreadPool& pool);
  double ErrorOf(int64_t lane, int64_t token, const int32_t* order) const;

  LaneMasks masks_;
  Problem problem_;
  int64_t head_dim_;
  DType wire_;
  Compute compute_;
  HomeRows home_;
  AlignedBuffer<float> inputs_[3];  // q, k, v: [home tokens][heads][head_dim]
  mutable AlignedBuffer<float> out_;
  LayerCall call_;
};

}  // namespace equitile
