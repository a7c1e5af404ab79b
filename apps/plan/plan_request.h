// The flags of everything that plans: which mask, for how many ranks, on what machine, by which
// planners.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "equitile/io/records/mask_file.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {

// As typed; every value is checked where it is used.
struct PlanFlags {
  std::string mask, synthetic;
  std::optional<int64_t> ranks, block, batch, layer;
  std::string planners = "all";
  int64_t head_dim = 128;
  std::string compute = "f32";  // of attention
  double reward = 2;
  std::string dbsp_blocks = "greedy", dbsp_head_order = "assignment", dbsp_balance = "both";
  bool reproducible = true;
  std::string machine, link, node_link, cable;
  std::optional<double> kernel_gflops;
  int64_t node_size = 0;
  std::vector<int32_t> node_of;  // [ranks] no flag: what a running job knows about itself
  std::vector<double> speeds;
};

void AddPlanFlags(CLI::App& app, PlanFlags& flags);

// Throws InputError for what cannot be used.
MaskFile MaskOf(const PlanFlags& flags);  // all layers
// For one layer at all its steps, which stand where layers are: those of a file, or of a profile.
MaskFile StepsOf(const PlanFlags& flags);
bool IsFolder(const PlanFlags& flags);  // of masks, of a whole run
std::string SourceOf(const PlanFlags& flags);
// Says on stderr what the machine file does not know.
PlanOptions OptionsOf(const PlanFlags& flags, const BlockGrid& grid);

}  // namespace equitile
