// How one call of one layer went, and a run's calls as text: a run that goes on after a crash tells
// of all of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/exec/run_record.h"

namespace equitile {

// The planner of a call in which no head is left: nothing moves, nothing is computed.
inline constexpr std::string_view kNoPlanner = "none";

struct LayerRecord {
  int32_t step = 0, layer = 0;  // counted from 0
  double sigma = 0;
  double density = 1;
  std::vector<double> mass_held;         // [lanes]; empty: not measured, or all of it
  std::string planner;                   // "fractional", or kNoPlanner
  double rho_before = 1, rho_after = 1;  // of the plan at hand when the mask came, and of this one
  bool plan_made = false;
  double mask_seconds = 0, plan_seconds = 0;  // plan: scoring, planning, lowering, hashing
  int64_t mask_bytes_sent = 0;                // see Communicator::bytes_sent
  double watch_seconds = 0;
  RunStats run;

  double Seconds() const { return mask_seconds + plan_seconds + watch_seconds + run.seconds; }
};

// JSON, a column for each member.
std::string LayerRecordsText(std::span<const LayerRecord> records);
std::vector<LayerRecord> ParseLayerRecords(std::string_view text);  // throws InputError

}  // namespace equitile
