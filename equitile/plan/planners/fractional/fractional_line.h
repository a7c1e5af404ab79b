// All rows in one line, lane after lane, cut into one contiguous piece per rank: where there are
// more ranks than lanes most ranks can only have a piece of one lane, and cutting finds it at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/plan/planners/fractional/fractional_rows.h"

namespace equitile {

struct LinePiece {
  int64_t lane = 0;
  Range rows;
  int64_t rank = 0;
};

// The cut with the least worst ratio of work to target that contiguous pieces in rank order allow;
// one_lane_each: no rank gets rows of two lanes. Empty if that takes more than `most` times the
// target of some rank. target: [ranks], positive.
std::vector<LinePiece> CutLine(const RowTable& rows, std::span<const double> target, double most,
                               bool one_lane_each);

}  // namespace equitile
