// Everything there is to say about a plan for a mask: one struct for the table, the JSON, the page
// and the Python module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/plan/predict/bounds.h"
#include "equitile/plan/predict/measure.h"
#include "equitile/plan/predict/score.h"
#include "equitile/plan/predict/simulate.h"

namespace equitile {

struct PlanReport {
  std::string planner;  // as asked for: "usp:4x2", "auto"
  std::string chosen;   // what auto chose; empty for all others
  Plan plan;

  double rho = 1, rho_paper = 1;
  double bound = 1, bound_any = 1;  // no plan of this kind, no plan at all, is below
  Moved moved;
  std::optional<Donated> donated;  // fractional only
  int64_t bytes_max = 0;           // sent + received by the busiest rank, one layer
  double bytes_mean = 0;
  int64_t messages = 0;
  int64_t buffer_bytes_max = 0;
  Prediction prediction;
  double paper_seconds = 0;            // the paper's latency formula
  std::vector<int64_t> work_per_rank;  // in units of the cost model
  // Costs + plan + rho, moved, bytes. Filled by whoever has a clock.
  double plan_seconds = 0;
};

// `score` must be ScorePlan of this plan and mask. Lowers the plan and walks the program.
PlanReport MakeReport(const Plan& plan, const Score& score, const LaneMasks& masks, RowCounts& rows,
                      const PlanOptions& options);

// Owners as the db-SP reference names them, for ring plans: lanes of the groups one after another,
// and ring ranks of rows and columns, per group. A group without lanes has no rows.
struct RingOwners {
  std::vector<int32_t> head_perm;              // [lanes]
  std::vector<std::vector<int32_t>> q_owner;   // [groups][q_blocks]
  std::vector<std::vector<int32_t>> kv_owner;  // [groups][kv_blocks]
};
RingOwners OwnersOf(const Plan& plan);

// One sentence on why `reports[best]` is the fastest of the reports by prediction.
std::string WhyBest(const std::vector<PlanReport>& reports, size_t best);

// Indices of `reports`, the least predicted seconds first; equal ones keep their order.
std::vector<size_t> BestFirst(const std::vector<PlanReport>& reports);

}  // namespace equitile
