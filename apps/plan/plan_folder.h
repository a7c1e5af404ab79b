// What planners would have given for all masks of a run: `equitile plan --mask FOLDER`, with the
// masks that `generate --export-masks` writes. Plans are kept from step to step as in a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan/plan_request.h"
#include "equitile/io/json_value.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/sparsity/balance/balancer.h"
#include "equitile/sparsity/files/file_masks.h"

namespace equitile {

// One planner over the layers of a step, or of all steps.
struct PlannedCalls {
  std::string planner = {};
  int64_t calls = 0;
  double rho_sum = 0, rho_max = 0;
  std::optional<double> moved = {};  // query and key blocks; nothing: not counted for such plans
  int64_t bytes = 0;                 // of the busiest rank of each call
  double seconds = 0;                // predicted

  double RhoMean() const { return rho_sum / static_cast<double>(calls); }
  void Add(const PlannedCalls& more);
  friend bool operator==(const PlannedCalls&, const PlannedCalls&) = default;
};

struct PlannedStep {
  std::optional<int64_t> step;  // nothing: masks for every step
  int64_t layers = 0;
  double density = 0;               // mean over layers
  std::vector<PlannedCalls> plans;  // [planners], in the order of FolderReport::plans
};

struct FolderReport {
  std::string source;
  Lanes lanes;
  BlockGrid grid;
  int64_t calls = 0;
  double density = 0;
  std::vector<PlannedStep> steps;
  std::vector<PlannedCalls> plans;      // all steps together, the fastest first
  std::vector<BalanceReport> balances;  // of the same planners
};

// Throws InputError for flags that are for one mask only.
FolderReport PlanFolder(const PlanFlags& flags, const MaskTable& masks, const ReplanRule& rule,
                        const PlanOptions& options);

Json FolderJson(const FolderReport& report, const PlanOptions& options);

}  // namespace equitile
