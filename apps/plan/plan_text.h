// What `equitile plan` prints for people: tables that fit a terminal of 80 columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/plan/plan_folder.h"
#include "equitile/io/records/plan_report_json.h"

namespace equitile {

struct PlanTextOptions {
  bool wide = false;     // all columns
  std::string baseline;  // the planner that speed-ups are over; "": there is none
};

// The first of the planners that does not look at the mask: what speed-ups are over.
std::string BaselineOf(const std::vector<PlannerSpec>& specs);

// Plans of one mask, best first; those that are the same are one row ("usp:8x1 = ulysses").
std::string PlansText(const std::vector<PlanReport>& plans, const PlanTextOptions& options);

// All layers together, fastest first.
std::string SummaryText(const std::vector<MaskReport>& layers, const PlanTextOptions& options);

// All calls of a run together, then step by step; steps that are the same are one.
std::string FolderText(const FolderReport& report, const PlanTextOptions& options);

// What the columns are.
std::string PlanLegend(const PlanTextOptions& options);

}  // namespace equitile
