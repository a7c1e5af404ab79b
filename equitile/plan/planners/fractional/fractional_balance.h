// Rows change hands until all ranks have the same work, at the least cost in bytes: the second step
// of the fractional planner, after whole lanes are dealt out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/plan/planners/fractional/fractional_ledger.h"
#include "equitile/plan/planners/fractional/fractional_rows.h"

namespace equitile {

// How many offers may still be looked at. Counted, not timed, so that every rank makes the same
// plan.
struct ProbeBudget {
  int64_t left = 0;

  bool Spend(int64_t probes = 1) {
    left -= probes;
    return left >= 0;
  }
  bool Empty() const { return left <= 0; }
};

class RowBalancer {
 public:
  // target: [ranks] the work each should have; tolerance: relative to it. The ledger is changed.
  RowBalancer(Ledger& ledger, const RowTable& rows, const BlockHomes& homes,
              std::span<const double> target, double tolerance, ProbeBudget& budget);

  // The most loaded rank gives to whoever gets the work with the fewest bytes, until all are within
  // the tolerance. Best where few ranks are far off.
  void Shed();
  // The least loaded rank takes all it lacks from one other, if it can, even if that one then lacks
  // work itself: every rank gets about one foreign piece. Best where there are few lanes per rank.
  void Fill();
  // Relieves the rank with the most bytes: it hands its part of a lane to another rank and takes
  // work of the same cost back, as long as the largest number of bytes falls.
  void Relieve();
  // Whatever is left to do, without looking at bytes: afterwards nobody has more than its target
  // plus the longest row.
  void Enforce();

  bool Even() const;          // all within the tolerance
  double WorstRatio() const;  // largest work over target

 private:
  // Rows of `lane` that could go from `from` to `to`.
  struct Offer {
    int64_t lane = -1;
    Range rows = {};
    int64_t from = -1, to = -1;
    int64_t cost = 0;
    double score = 0;

    bool IsNone() const { return lane < 0; }
  };

  // `from` hands all its rows of `lane` to `to` and gets `back`, or nothing.
  struct Trade {
    int64_t lane = -1, from = -1, to = -1;
    Offer back;
    int64_t bytes = 0;  // of the busier of the two, afterwards
  };

  double Excess(int64_t rank) const {
    return static_cast<double>(ledger_.work(rank)) - target_[static_cast<size_t>(rank)];
  }
  // Never more than the longest row, which is what the planner promises.
  double Slack(int64_t rank) const {
    return std::min(tolerance_ * target_[static_cast<size_t>(rank)],
                    static_cast<double>(rows_.LongestRow()));
  }
  double RelativeExcess(int64_t rank) const {
    return Excess(rank) / target_[static_cast<size_t>(rank)];
  }

  std::vector<int64_t> Extremes(bool most_loaded, int64_t count) const;
  std::vector<int64_t> CheapLanes(int64_t rank, double amount) const;
  template <typename Visit>
  void ForEachOffer(int64_t from, int64_t to, double amount, bool at_least_a_row,
                    const Visit& visit);
  Offer BestShed(int64_t from);
  Offer BestFill(int64_t to, const std::vector<int64_t>& donors);
  std::vector<Range> PartsOf(int64_t lane, int64_t rank) const;
  Trade BestTrade(int64_t lane, int64_t from, int64_t to);
  bool Make(const Trade& trade);
  bool RelieveOnce();
  void Apply(const Offer& offer) { ledger_.Give(offer.lane, offer.rows, offer.from, offer.to); }

  Ledger& ledger_;
  const RowTable& rows_;
  const BlockHomes& homes_;
  std::span<const double> target_;
  double tolerance_;
  ProbeBudget& budget_;
};

}  // namespace equitile
