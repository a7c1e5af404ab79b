// Plans as JSON: lossless, versioned, and made to be looked at and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/cost_model.h"

namespace equitile {

// {"version": 1, "hash", "mask_hash", "ranks", "batch",
//  "grid": {"heads", "block", "q_tokens", "kv_tokens", "video": [F, H, W],
//           "text": {"before", "after"}, "home_order"},
//      video, text, home_order: where a lane is not in home order; home_order: where it is not fhw
//  "homes": {"tile": 64, "query": [[begin, end] per rank], "key": [...]}   the default cut: ranges
//      of tiles on the (batch, tile) line
//          | {"first_tokens": [batch][ranks]}   any other
//  "orders": "fhw" | [one per lane],
//  "planner": {"name", "ulysses", "ring", "parameters": {...}}, "row_owner": [lanes][q_blocks],
//  "stages": {"movement": "exchange", "needed_kv_only",
//             "head_group": [per lane: group | [[rank, group], ...]]}
//          | {"movement": "ring", "needed_kv_only", "rings": [{"ranks", "lanes", "kv_owner"}]},
//  "cost": {"block", "row"}, "work_per_rank": [ranks]}
struct PlanFile {
  PlanParts parts;         // canonical, not yet checked to be a plan
  uint64_t hash = 0;       // as stored; compare with HashParts(parts)
  uint64_t mask_hash = 0;  // HashMask of the mask it was made for
  CostModel cost;          // unit of work_per_rank
  std::vector<int64_t> work_per_rank;
  bool homes_match = true;  // a stored default cut is the one that follows from tokens and ranks

  bool HashMatches() const { return HashParts(parts) == hash; }
};

PlanFile MakePlanFile(const Plan& plan, uint64_t mask_hash, const CostModel& cost,
                      std::vector<int64_t> work_per_rank);

std::string PlanFileText(const PlanFile& file);
// Throws InputError in one line for whatever is missing, of the wrong kind, out of range or
// unknown. `name` stands for the text in messages. What is well formed but contradicts the stored
// hash is left to the caller.
PlanFile ParsePlanFile(std::string_view text, std::string_view name);

void WritePlanFile(const std::filesystem::path& path, const PlanFile& file);
PlanFile ReadPlanFile(const std::filesystem::path& path);

}  // namespace equitile
