#include "equitile/plan/planners/fractional/fractional_line.h"

#include <cmath>

namespace equitile {
namespace {

// Fills one rank after the other up to ratio x target; false: the ranks do not suffice.
bool Deal(const RowTable& rows, std::span<const double> target, double ratio, bool one_lane_each,
          std::vector<LinePiece>* pieces) {
  size_t rank = 0;
  int64_t room = static_cast<int64_t>(std::floor(ratio * target[0]));
  auto next_rank = [&] {
    if (++rank == target.size()) return false;
    room = static_cast<int64_t>(std::floor(ratio * target[rank]));
    return true;
  };
  for (int64_t lane = 0; lane < rows.Lanes(); ++lane) {
    for (int64_t begin = 0; begin < rows.QBlocks();) {
      const int64_t end = rows.EndWithin(lane, {begin, rows.QBlocks()}, room);
      if (end == begin) {
        if (!next_rank()) return false;
        continue;
      }
      room -= rows.Cost(lane, {begin, end});
      if (pieces != nullptr) pieces->push_back({lane, {begin, end}, static_cast<int64_t>(rank)});
      begin = end;
    }
    const bool last = lane + 1 == rows.Lanes();
    if (one_lane_each && !last && rows.LaneCost(lane) > 0 && !next_rank()) return false;
  }
  return true;
}

}  // namespace

std::vector<LinePiece> CutLine(const RowTable& rows, std::span<const double> target, double most,
                               bool one_lane_each) {
  std::vector<LinePiece> pieces;
  if (!Deal(rows, target, most, one_lane_each, nullptr)) return pieces;
  double below = 0.5, above = most;
  constexpr int kSteps = 30;  // far below one row
  for (int step = 0; step < kSteps; ++step) {
    const double middle = (below + above) / 2;
    (Deal(rows, target, middle, one_lane_each, nullptr) ? above : below) = middle;
  }
  Deal(rows, target, above, one_lane_each, &pieces);
  return pieces;
}

}  // namespace equitile
