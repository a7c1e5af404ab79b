// How even a plan is: the sparse imbalance ratio, next to what no plan can beat, and how many
// blocks leave their home chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/cost_model.h"
#include "equitile/plan/predict/stage_work.h"

namespace equitile {

// With W[r,s] the cost of rank r in stage s and a group = the ranks that pass K/V on to each other
// (every rank its own group where nobody does; head groups of an exchange are added up, not
// staged):
//   rho       = max over groups of  sum_s max_{r in group} W[r,s]   /  (sum W / ranks)
//   rho_paper =                     sum_s max_r W[r,s]              /  (sum W / ranks)
// With speeds v: W/v_r, against sum W / sum v. Without work both are 1.
struct Imbalance {
  int64_t total = 0;
  // Numerators; in speed-weighted units if there are speeds, else exact.
  double critical = 0, critical_paper = 0;
  double rho = 1, rho_paper = 1;
};

Imbalance MeasureImbalance(const Plan& plan, const StageWork& work, const CostModel& model,
                           std::span<const double> speeds);

// Blocks that leave the ring rank whose even part of the sequence they are in: N - trace(T_u), mean
// over Ulysses groups with lanes. 0 for static layouts; none for fractional, where a row's home is
// no chunk.
struct Moved {
  std::optional<double> q_blocks, kv_blocks;
};
Moved CountMoved(const Plan& plan);

// Fractional's own count: rows that are not on the rank which has most of their lane, and lanes on
// more than one rank.
struct Donated {
  int64_t rows = 0, split_lanes = 0;
};
Donated CountDonated(const Plan& plan);

}  // namespace equitile
