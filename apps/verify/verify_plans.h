// `equitile verify` without a model: every planner on every number of ranks against one rank.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/ranks.h"
#include "equitile/kernel/compute.h"

namespace equitile {

struct VerifyPlansRequest {
  std::string mask, synthetic, planners = "all";
  std::vector<int64_t> ranks = {1, 2, 3, 5, 8};
  bool ranks_given = false;
  int64_t head_dim = 64, seed = 1;
  Compute compute = Compute::kF32;
  bool json = false;
  RanksRequest on;
};

// Without --seed, --threads and --compute, which other questions have too.
void AddVerifyPlans(CLI::App& app, VerifyPlansRequest& request);

// Prints one line per case, then throws Error if a case failed.
void VerifyPlans(const VerifyPlansRequest& request);

}  // namespace equitile
