// Self-attention of a model's layers over all ranks, once somebody says which mask and which plan:
// what a transformer's attention is wired to.
#pragma once

#include <cstdint>
#include <functional>

#include "equitile/exec/executor.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {

// Collective and deterministic: every rank gets the same plan for the same mask. The reference is
// valid until the next call.
using PlanFor = std::function<const Plan&(int32_t layer, const BlockMask& mask)>;

class AttentionLayers {
 public:
  AttentionLayers(Executor& executor, int64_t head_dim, PlanFor plan_for);

  // Collective: one layer. call.out is [home tokens][heads][head_dim]; home tokens are the rank's
  // of HomeMap(problem), HomeLine.
  RunStats Run(const BlockMask& mask, const LayerCall& call);

  // Sums over all runs so far; of bytes held, the most.
  const RunStats& Totals() const { return totals_; }
  double PlanSeconds() const { return plan_seconds_; }  // planning, lowering, hashing
  int64_t Runs() const { return runs_; }

 private:
  Executor& executor_;
  int64_t head_dim_;
  PlanFor plan_for_;
  RunStats totals_;
  double plan_seconds_ = 0;
  int64_t runs_ = 0;
};

}  // namespace equitile
