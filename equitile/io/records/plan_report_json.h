// Reports of plans as JSON: what `equitile plan --json` prints and what the Python module gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "equitile/io/json_value.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/plan/planners/report.h"

namespace equitile {

// All plans for one mask.
struct MaskReport {
  std::string source;            // file name or synthetic spec
  std::optional<int64_t> layer;  // of a mask with several
  BlockMask mask;
  std::vector<PlanReport> plans;  // best first
};

Json ClusterJson(const Cluster& cluster);
Json PlanReportJson(const PlanReport& report, bool details);

// {"mask", "ranks", "plans", "cost", "cluster"}, with "layer" first where there is one.
Json MaskReportJson(const MaskReport& report, const PlanOptions& options, bool details);

// {"layers": [...], "summary": {"plans": [...]}}: per planner mean and largest rho, largest bytes,
// seconds of all layers together; fastest first.
Json LayersReportJson(const std::vector<MaskReport>& layers, const PlanOptions& options,
                      bool details);

struct PlannerSummary {
  std::string planner;
  double rho_mean = 0, rho_max = 0;
  int64_t bytes_max = 0;
  double predicted_seconds = 0;
};
std::vector<PlannerSummary> SummarizeLayers(const std::vector<MaskReport>& layers);

}  // namespace equitile
