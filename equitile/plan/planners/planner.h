// The planners by name: one call from a text like "usp:4x2" and a mask to a Plan. Deterministic:
// every rank that asks the same gets the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/planners/dbsp/dbsp.h"
#include "equitile/plan/predict/cost_model.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/plan/predict/simulate.h"
#include "equitile/plan/predict/stage_work.h"

namespace equitile {

enum class PlannerKind : uint8_t { kUlysses, kRing, kUsp, kDbsp, kDbspPlus, kFractional, kAuto };

struct PlannerSpec {
  PlannerKind kind = PlannerKind::kAuto;
  int32_t ulysses = 0, ring = 0;  // usp, dbsp, dbsp+

  std::string Text() const;
  friend bool operator==(const PlannerSpec&, const PlannerSpec&) = default;
};

// The planner that a text names, whatever its degrees. Throws InputError.
PlannerKind ParsePlannerKind(std::string_view text);
bool HasDegrees(PlannerKind kind);
// "ulysses", "ring", "fractional", "auto", "usp:4x2", "dbsp:4x2", "dbsp+:4x2". Throws InputError,
// also when U·R is not `ranks`.
PlannerSpec ParsePlanner(std::string_view text, int32_t ranks);
// A comma list of them; "all" stands for ulysses, ring, fractional, auto and every usp, dbsp, dbsp+
// with U·R = ranks.
std::vector<PlannerSpec> ParsePlanners(std::string_view text, int32_t ranks);
// "all" without auto: what auto chooses from.
std::vector<PlannerSpec> AllPlanners(int32_t ranks);

// Whether its plans merge partial results (Plan::SplitsRows), whatever the mask: for `batch` items
// on `ranks` ranks, which it fits. Not for auto, where it depends on the choice.
bool SplitsRows(const PlannerSpec& spec, int64_t batch, int32_t ranks);

struct PlanOptions {
  int32_t ranks = 1;
  std::vector<int64_t> homes = {};  // as Problem::homes
  CostModel cost;
  Cluster cluster;
  DbspOptions dbsp;
  bool reproducible = true;  // keeps auto to plans that do not split a row
};

// Rates of a machine for blocks of `grid`, and costs in their picoseconds. What the machine does
// not say, and who shares a node, stays.
void ApplyMachine(const Machine& machine, const BlockGrid& grid, PlanOptions& options);

Problem ProblemFor(const LaneMasks& masks, const PlanOptions& options);

struct MadePlan {
  Plan plan;
  std::optional<StageWork>
      work;  // where planning has counted it (blocks only: without a cost per row)
};
MadePlan MakePlan(const PlannerSpec& spec, const LaneMasks& masks, RowCounts& rows,
                  const PlanOptions& options);
Plan MakePlan(std::string_view spec, const LaneMasks& masks, const PlanOptions& options);

// Auto with its reasons: all candidates with their predicted seconds, the choice first.
struct Candidate {
  PlannerSpec spec;
  MadePlan made;
  Prediction prediction;
};
std::vector<Candidate> RankCandidates(const LaneMasks& masks, RowCounts& rows,
                                      const PlanOptions& options);

}  // namespace equitile
