// The one value that every planner makes and everything else reads: who computes which row, and how
// Q, K and V get there. A Plan knows no mask: the same Plan can be lowered for, and scored against,
// many masks of the same shape.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// What is divided: given to every planner, decided by none. Sizes only.
struct Problem {
  int32_t ranks = 1;
  Lanes lanes;
  BlockGrid grid;
  TokenGrid token_grid;            // used only where a lane is not in home order
  std::vector<TokenOrder> orders;  // [lanes], or empty: every lane in home order
  // [batch][ranks] the first token of every rank, which holds those up to the next one's: any
  // tokens, query and key alike. Empty: the cut of DefaultHomes (home_map.h).
  std::vector<int64_t> homes = {};

  TokenOrder OrderOf(int64_t lane) const {
    return orders.empty() ? token_grid.home : orders[static_cast<size_t>(lane)];
  }
  // Blocks of such a lane are consecutive tokens.
  bool InHomeOrder(int64_t lane) const { return OrderOf(lane) == token_grid.home; }
  friend bool operator==(const Problem&, const Problem&) = default;
};

// Throws InputError: ranks < 1, bad grid, wrong number of orders, an order whose token grid does
// not cover q and kv tokens, or homes that do not cut every item's tokens. The result is canonical.
Problem CheckedProblem(Problem problem);

// Rows [end of the run before, end) of one lane are computed by `rank`; they travel in exchange
// stage `stage`.
struct RowRun {
  int32_t end = 0;    // q block, half open; the last run of a lane ends at q_blocks
  int32_t rank = 0;   // computes these rows
  int32_t stage = 0;  // head group: stage k+1 is exchanged while stage k is computed. One per
                      // (lane, rank). 0 in ring plans

  friend auto operator<=>(const RowRun&, const RowRun&) = default;
};
using RowRuns = std::vector<RowRun>;

// Ranks that pass K/V on to each other. In stage s ring rank r (an index into `ranks`) holds the kv
// blocks that ring rank (r + s) mod R owns. One group per Ulysses group; R = ranks.size(), equal
// for all groups of a plan.
struct RingGroup {
  std::vector<int32_t> ranks;  // [R] global rank of ring rank r
  std::vector<int32_t> lanes;  // in the planner's order (for dbsp: the group's part of head_perm)
  int32_t kv_map = 0;          // PlanParts::kv_maps: where the group's kv blocks start

  friend bool operator==(const RingGroup&, const RingGroup&) = default;
};

// How K and V reach the ranks.
enum class Movement : uint8_t {
  kExchange,  // straight from home to every rank that owns rows of the lane (ulysses, fractional);
              // rows are computed whole
  kRing,  // to the block's owner in the ring group, then around the ring (ring, usp, dbsp); rows in
          // R parts
};

// Which planner made it, with everything that decided the result: printed, hashed, kept in files.
struct PlannerLabel {
  std::string name;               // "usp", "dbsp+", "fractional"
  int32_t ulysses = 0, ring = 0;  // degrees; 0 where the kind has none
  // {"reward", "2"}, sorted by name. A map would cost as much as a small plan.
  std::vector<std::pair<std::string, std::string>> parameters;

  std::string Text() const;  // "usp:4x2", "fractional"
  friend bool operator==(const PlannerLabel&, const PlannerLabel&) = default;
};

// Everything a Plan consists of, before it is checked.
struct PlanParts {
  Problem problem;
  PlannerLabel planner;
  Movement movement = Movement::kExchange;
  // Leave out K/V blocks that no row of the receiver keeps (dbsp+, fractional).
  bool needed_kv_only = false;

  // Distinct row maps and which of them a lane has; lanes of one Ulysses group share one.
  std::vector<RowRuns> row_maps;
  std::vector<int32_t> map_of_lane;  // [lanes]
  // Distinct maps of kv blocks for rings: [kv_blocks] ring rank at which the block starts, for
  // every lane of the group.
  std::vector<std::vector<int32_t>> kv_maps;

  // kRing: every lane and every rank in exactly one group. kExchange: empty.
  std::vector<RingGroup> rings;

  friend bool operator==(const PlanParts&, const PlanParts&) = default;
};

// The one form of problems that are equal: no orders, and then no token grid, when all are the
// home's; no homes when they are the default.
Problem CanonicalProblem(Problem problem);

// The one form of parts that are equal: neighbouring runs of one rank joined, equal row maps
// shared, a canonical problem. Checks nothing.
PlanParts CanonicalParts(PlanParts parts);
// Of canonical parts; the same on every machine and in every run.
uint64_t HashParts(const PlanParts& parts);

// Small, immutable, equal exactly when everything in it is equal.
class Plan {
 public:
  Plan() = default;
  // Keeps the canonical parts. Throws InputError, in words, if they do not make a plan: an owner
  // out of range, a lane in two rings, a row without owner ...
  explicit Plan(PlanParts parts);
  // For parts that are right and canonical by the way they were made.
  static Plan OfCanonical(PlanParts parts);

  const PlanParts& parts() const { return parts_; }
  const Problem& problem() const { return parts_.problem; }
  const PlannerLabel& planner() const { return parts_.planner; }
  int32_t ranks() const { return parts_.problem.ranks; }
  Movement movement() const { return parts_.movement; }
  bool needed_kv_only() const { return parts_.needed_kv_only; }
  const std::vector<RingGroup>& rings() const { return parts_.rings; }

  const RowRuns& RunsOf(int64_t lane) const {
    return parts_.row_maps[static_cast<size_t>(parts_.map_of_lane[static_cast<size_t>(lane)])];
  }
  const std::vector<int32_t>& KvOwner(const RingGroup& ring) const {  // [kv_blocks] ring rank
    return parts_.kv_maps[static_cast<size_t>(ring.kv_map)];
  }
  // A binary search; loops over rows should walk RunsOf.
  int32_t RowOwner(int64_t lane, int64_t q_block) const;
  std::vector<int32_t> RowOwners(int64_t lane) const;  // [q_blocks]

  // Ring: R; exchange: number of head groups, at least 1.
  int32_t Stages() const { return stages_; }
  bool SplitsRows() const;  // partial results are merged: not bit-reproducible
  // An exchange of whole lanes with all their keys (ulysses).
  bool KeepsLanesWhole() const;
  uint64_t hash() const { return HashParts(parts_); }  // computed at every call

  friend bool operator==(const Plan& a, const Plan& b) { return a.parts_ == b.parts_; }

 private:
  PlanParts parts_;
  int32_t stages_ = 1;
};

// --- What partitioners hand over ---

// One Ulysses group as ring, usp and dbsp decide it: a view, so that groups can share owners. For R
// = 1 they are all 0.
struct UlyssesGroup {
  std::span<const int32_t> lanes;     // in the planner's order
  std::span<const int32_t> q_owner;   // [q_blocks] ring rank that computes the row
  std::span<const int32_t> kv_owner;  // [kv_blocks] ring rank at which the column starts
};

// Ring plan; R = problem.ranks / groups. Global rank of (group u, ring rank r) is r*U + u, so that
// the U ranks whose homes make up chunk r are neighbours. Where the batch divides the number of
// groups, each batch item has its own range of ranks (where its home is), and inside it the same
// numbering.
Plan MakeRingPlan(const Problem& problem, PlannerLabel label, std::span<const UlyssesGroup> groups,
                  bool needed_kv_only);

// Exchange plan; runs_of_lane: [lanes]. Always complete rows, each on one rank.
Plan MakeExchangePlan(const Problem& problem, const PlannerLabel& label,
                      const std::vector<RowRuns>& runs_of_lane, bool needed_kv_only);

}  // namespace equitile
