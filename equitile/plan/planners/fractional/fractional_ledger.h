// The books of the fractional planner: who owns which rows, each rank's work, and the bytes it
// sends and receives, all kept up to date while rows change hands.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/planners/fractional/fractional_rows.h"

namespace equitile {

// Homes in whole blocks: a block that straddles two of them counts for the later one. Lanes in
// another order than the home's have their blocks everywhere; they are treated as local nowhere.
class BlockHomes {
 public:
  BlockHomes(const Problem& problem, const HomeMap& homes);

  int64_t Ranks() const { return ranks_; }
  int64_t ItemOf(int64_t lane) const { return lanes_.BatchOf(lane); }
  bool Scattered(int64_t lane) const {
    return !scattered_.empty() && scattered_[static_cast<size_t>(lane)];
  }
  Range Q(int64_t item, Range ranks) const { return At(q_begin_, item, ranks); }
  Range Q(int64_t item, int64_t rank) const { return Q(item, {rank, rank + 1}); }
  Range Kv(int64_t item, Range ranks) const { return At(kv_begin_, item, ranks); }
  Range Kv(int64_t item, int64_t rank) const { return Kv(item, {rank, rank + 1}); }
  int64_t QHome(int64_t item, int64_t q_block) const;
  int64_t KvHome(int64_t item, int64_t kv_block) const {
    return kv_home_[static_cast<size_t>(item * kv_blocks_ + kv_block)];
  }
  // Ranks that hold tokens of the item.
  Range HoldersOf(int64_t item) const { return holders_[static_cast<size_t>(item)]; }

 private:
  Range At(const std::vector<int32_t>& begin, int64_t item, Range ranks) const {
    const int32_t* first = begin.data() + item * (ranks_ + 1);
    return {first[ranks.begin], first[ranks.end]};
  }

  Lanes lanes_;
  int64_t ranks_, kv_blocks_;
  std::vector<int32_t> q_begin_, kv_begin_;  // [batch][ranks + 1]
  std::vector<int32_t> kv_home_;             // [batch][kv_blocks]
  std::vector<Range> holders_;               // [batch]
  std::vector<bool> scattered_;              // [lanes], or empty: none
};

// What moving one block costs.
struct TrafficPrices {
  int64_t q_block = 0;      // bytes: Q there, O and log-sum-exp back
  int64_t kv_block = 0;     // bytes: K and V
  int64_t near = 1;         // weight of a byte inside a node
  int64_t far = 1;          // weight of a byte between nodes
  std::vector<Range> node;  // [ranks] the ranks of its node; empty: no nodes, all bytes are far
};

class Ledger {
 public:
  struct Segment {
    Range rows;
    int32_t rank;
  };
  // A rank's part of a lane.
  struct Holding {
    int32_t rank;
    int64_t cost;
    std::vector<uint64_t> needed;  // kv blocks
  };

  // Starts without owners. Rows and homes must outlive it.
  Ledger(const RowTable& rows, const BlockHomes& homes, const TrafficPrices& prices);

  int64_t work(int64_t rank) const { return work_[static_cast<size_t>(rank)]; }
  int64_t bytes(int64_t rank) const { return bytes_[static_cast<size_t>(rank)]; }  // weighted
  int64_t MaxBytes() const;
  const std::vector<Segment>& Segments(int64_t lane) const {
    return lanes_[static_cast<size_t>(lane)].segments;
  }
  const std::vector<int32_t>& LanesOf(int64_t rank) const {
    return lanes_of_[static_cast<size_t>(rank)];
  }
  const std::vector<Holding>& HoldingsOf(int64_t lane) const {  // by rank
    return lanes_[static_cast<size_t>(lane)].holdings;
  }
  const Holding* Find(int64_t lane, int64_t rank) const;  // nullptr: holds nothing of it
  Range NodeOf(int64_t rank) const;

  // Rows that have no owner yet, ascending within a lane.
  void Take(int64_t lane, Range rows, int64_t rank);
  // Rows inside one segment of `from`.
  void Give(int64_t lane, Range rows, int64_t from, int64_t to);

  // How the bytes of the two would change by Give; what they send as homes of K/V is left out.
  int64_t GainedBytes(int64_t lane, Range rows, int64_t from, int64_t to) const;  // of `to`
  int64_t SavedBytes(int64_t lane, Range rows, int64_t from,
                     int64_t to) const;  // of `from`, >= 0 mostly
  // Weighted number of the rows that are not at home on the rank; empty ones do not count.
  int64_t ForeignRows(int64_t lane, Range rows, int64_t rank) const;
  // Weighted bytes of a set of kv blocks for a rank that has none of them but its own.
  int64_t KvBytes(int64_t lane, const uint64_t* needed, int64_t rank) const;

 private:
  struct LaneBook {
    std::vector<Segment> segments;  // ascending; neighbours differ in rank
    std::vector<Holding> holdings;  // ascending by rank
  };

  Holding& HoldingOf(int64_t lane, int64_t rank);
  void SetNeeded(int64_t lane, Holding& holding, const std::vector<uint64_t>& needed);
  void MoveRows(int64_t lane, Range rows, int64_t rank, int64_t sign);
  void Splice(std::vector<Segment>& segments, Range rows, int32_t to);
  std::vector<uint64_t>& NeededWithout(int64_t lane, Range rows, int64_t rank) const;
  int64_t RowBytes(int64_t lane, Range rows, int64_t rank, int64_t other) const;
  void AddTraffic(int64_t rank, int64_t home, int64_t bytes) {
    if (rank == home) return;
    bytes *= Weight(rank, home);
    bytes_[static_cast<size_t>(rank)] += bytes;
    bytes_[static_cast<size_t>(home)] += bytes;
  }
  int64_t Weight(int64_t a, int64_t b) const {
    return !prices_.node.empty() && NodeOf(a) == NodeOf(b) ? prices_.near : prices_.far;
  }
  // Weighted number of blocks from elsewhere, of `total`, `node` of them on the rank's node (itself
  // included) and `own` its own.
  int64_t Foreign(int64_t total, int64_t node, int64_t own) const {
    return prices_.far * (total - node) + prices_.near * (node - own);
  }

  const RowTable& rows_;
  const BlockHomes& homes_;
  TrafficPrices prices_;
  std::vector<int64_t> work_, bytes_;           // [ranks]
  std::vector<LaneBook> lanes_;                 // [lanes]
  std::vector<std::vector<int32_t>> lanes_of_;  // [ranks]
  mutable std::vector<uint64_t> scratch_;       // [words]
};

}  // namespace equitile
