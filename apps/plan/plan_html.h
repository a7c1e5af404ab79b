// `equitile plan --html`: the comparison as one page that needs nothing but a browser.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "equitile/io/records/plan_report_json.h"

namespace equitile {

// Layers of one mask, planned for the same ranks. The first layer's mask is always in the page,
// those of later layers as long as it stays small.
std::string PlanPage(const std::vector<MaskReport>& layers, const PlanOptions& options);

}  // namespace equitile
