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

enum class PlannerKind : uint8_t {
  kUlysses,
  kRing,
  kUsp,
  kDbsp,
  kDbspPlus,
  kFractional,
  kAuto,      // the best of all of them, by predicted seconds
  kDbspAuto,  // db-SP as published: the best U x R of dbsp, by the paper's estimate
};

struct PlannerSpec {
  PlannerKind kind = PlannerKind::kAuto;
  int32_t ulysses = 0, ring = 0;  // usp, dbsp, dbsp+

  std::string Text() const;
  friend bool operator==(const PlannerSpec&, const PlannerSpec&) = default;
};

// The planner that a text names, whatever its degrees. Throws InputError.
PlannerKind ParsePlannerKind(std::string_view text);
bool HasDegrees(PlannerKind kind);
bool Chooses(PlannerKind kind);  // between layouts, by the mask: auto and dbsp:auto
// "ulysses", "ring", "fractional", "auto", "usp:4x2", "dbsp:4x2", "dbsp+:4x2", "dbsp:auto". Throws
// InputError, also when U·R is not `ranks`.
PlannerSpec ParsePlanner(std::string_view text, int32_t ranks);
// A comma list of them; "all" stands for ulysses, ring, fractional, auto, dbsp:auto and every usp,
// dbsp, dbsp+ with U·R = ranks.
std::vector<PlannerSpec> ParsePlanners(std::string_view text, int32_t ranks);
// "all" without those that choose: what auto chooses from.
std::vector<PlannerSpec> AllPlanners(int32_t ranks);

// Whether its plans merge partial results (Plan::SplitsRows), whatever the mask: for `batch` items
// on `ranks` ranks, which it fits. Of one that chooses: whether any that it may choose does.
// reproducible: as in PlanOptions.
bool MaySplitRows(const PlannerSpec& spec, int64_t batch, int32_t ranks, bool reproducible);

struct PlanOptions {
  int32_t ranks = 1;
  std::vector<int64_t> homes = {};  // as Problem::homes
  CostModel cost;
  Cluster cluster;
  DbspOptions dbsp;
  bool reproducible = true;  // keeps auto to plans that do not split a row
};

// Rates of a machine for blocks of `grid`, of attention in `dtype`, and costs in their picoseconds.
// What the machine does not say, and who shares a node, stays.
void ApplyMachine(const Machine& machine, const BlockGrid& grid, PlanOptions& options,
                  std::string_view dtype = "f32");

Problem ProblemFor(const LaneMasks& masks, const PlanOptions& options);

struct MadePlan {
  Plan plan;
  std::optional<StageWork>
      work;  // where planning has counted it (blocks only: without a cost per row)
};
MadePlan MakePlan(const PlannerSpec& spec, const LaneMasks& masks, RowCounts& rows,
                  const PlanOptions& options);
Plan MakePlan(std::string_view spec, const LaneMasks& masks, const PlanOptions& options);

// A planner that chooses, with its reasons: all candidates with their predicted seconds, the choice
// first.
struct Candidate {
  PlannerSpec spec;
  MadePlan made;
  double seconds = 0;
};
std::vector<Candidate> RankCandidates(const PlannerSpec& chooser, const LaneMasks& masks,
                                      RowCounts& rows, const PlanOptions& options);

// The first of RankCandidates alone, without lowering those whose busiest rank computes for longer
// than another candidate takes in all.
Candidate BestCandidate(const PlannerSpec& chooser, const LaneMasks& masks, RowCounts& rows,
                        const PlanOptions& options);

// What `chooser` compares layouts by: auto the simulated seconds of the lowered plan, dbsp:auto the
// paper's estimate. Fills in the work where planning has not counted it.
double PredictedSeconds(const PlannerSpec& chooser, MadePlan& made, const LaneMasks& masks,
                        RowCounts& rows, const PlanOptions& options);

}  // namespace equitile
