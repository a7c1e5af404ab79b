#include "equitile/plan/predict/traffic.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "equitile/plan/core/kv_need.h"

namespace equitile {
namespace {

// Lanes for which the same blocks move: one stands for all.
struct AlikeLanes {
  int32_t lane = 0;
  int64_t count = 0;
  int64_t item = 0;  // of the batch
  bool in_home_order = true;
};

AlikeLanes OneLane(const Problem& problem, int32_t lane) {
  return {.lane = lane,
          .count = 1,
          .item = problem.lanes.BatchOf(lane),
          .in_home_order = problem.InHomeOrder(lane)};
}

// How many ranks ask for each token of one side. Lanes in home order are booked as block ranges and
// resolved to homes at the end, so that a range costs the same however many homes it spans.
class Demand {
 public:
  Demand(const Problem& problem, const HomeMap& homes, Side side)
      : problem_(problem),
        homes_(homes),
        side_(side),
        blocks_(side == Side::kQuery ? problem.grid.QBlocks() : problem.grid.KvBlocks()),
        counts_(static_cast<size_t>(problem.lanes.batch * (blocks_ + 1) + 2 * problem.ranks), 0),
        to_rank_(counts_.data()),
        from_home_(to_rank_ + problem.ranks),
        change_(from_home_ + problem.ranks) {}
  Demand(const Demand&) = delete;

  // `rank` needs blocks [blocks) of each of the lanes.
  void Add(const AlikeLanes& lanes, Range blocks, int32_t rank) {
    const size_t r = static_cast<size_t>(rank);
    if (!lanes.in_home_order) {
      homes_.ForEachPart(side_, lanes.lane, blocks, [&](int32_t home, int64_t tokens) {
        if (home == rank) return;
        to_rank_[r] += tokens * lanes.count;
        from_home_[static_cast<size_t>(home)] += tokens * lanes.count;
      });
      return;
    }
    const Range own = homes_.RankTokens(side_, rank, lanes.item),
                tokens = homes_.TokensOf(side_, blocks);
    const int64_t local =
        std::max<int64_t>(0, std::min(own.end, tokens.end) - std::max(own.begin, tokens.begin));
    to_rank_[r] += (tokens.size() - local) * lanes.count;
    from_home_[r] -= local * lanes.count;
    int64_t* change = change_ + lanes.item * (blocks_ + 1);
    change[blocks.begin] += lanes.count;
    change[blocks.end] -= lanes.count;
  }

  // Call once, after all Add.
  void Resolve() {
    const int64_t block_tokens = problem_.grid.block_tokens;
    for (int64_t item = 0; item < problem_.lanes.batch; ++item) {
      const int64_t* change = change_ + item * (blocks_ + 1);
      // Homes and blocks both ascend: one sweep, cut at the ends of either.
      int64_t asked = *change, block_end = block_tokens;
      for (int32_t rank = 0; rank < problem_.ranks; ++rank) {
        const Range own = homes_.RankTokens(side_, rank, item);
        for (int64_t token = own.begin; token < own.end;) {
          if (token == block_end) {
            asked += *++change;
            block_end += block_tokens;
          }
          const int64_t end = std::min(own.end, block_end);
          from_home_[static_cast<size_t>(rank)] += asked * (end - token);
          token = end;
        }
      }
    }
  }

  // Tokens that a rank gets from other homes, and that its home gives to others.
  int64_t ToRank(size_t rank) const { return to_rank_[rank]; }
  int64_t FromHome(size_t rank) const { return from_home_[rank]; }

 private:
  const Problem& problem_;
  const HomeMap& homes_;
  Side side_;
  int64_t blocks_;
  std::vector<int64_t> counts_;    // all of the following, in one allocation
  int64_t *to_rank_, *from_home_;  // [ranks]
  int64_t* change_;  // [batch][blocks + 1] differences of the number of ranks that ask
};

// Sorts lanes into those that are alike.
class LaneSorter {
 public:
  explicit LaneSorter(const Plan& plan) : plan_(plan) {
    alike_.reserve(plan.parts().row_maps.size());
    std::map<TokenOrder, int64_t> known;
    for (TokenOrder order : plan.problem().orders)
      order_of_lane_.push_back(known.try_emplace(order, std::ssize(known)).first->second);
    orders_ = std::max<int64_t>(1, std::ssize(known));
  }

  // Those of `lanes`, which have one row map or whose rows do not matter, of one batch item and
  // order, in the order in which they first come. Valid until the next call.
  std::span<const AlikeLanes> OfGroup(std::span<const int32_t> lanes) {
    const Problem& problem = plan_.problem();
    alike_.clear();
    if (problem.lanes.batch == 1 && problem.orders.empty()) {
      if (!lanes.empty()) alike_.push_back({.lane = lanes[0], .count = std::ssize(lanes)});
      return alike_;
    }
    number_.assign(static_cast<size_t>(problem.lanes.batch * orders_), -1);
    for (int32_t lane : lanes) Add(lane, 0);
    return alike_;
  }

  // All lanes, by row map, batch item and order.
  std::span<const AlikeLanes> All() {
    const PlanParts& parts = plan_.parts();
    alike_.clear();
    number_.assign(parts.row_maps.size() * static_cast<size_t>(parts.problem.lanes.batch * orders_),
                   -1);
    for (int32_t lane = 0; lane < std::ssize(parts.map_of_lane); ++lane)
      Add(lane, parts.map_of_lane[static_cast<size_t>(lane)]);
    return alike_;
  }

 private:
  void Add(int32_t lane, int64_t map) {
    const Problem& problem = plan_.problem();
    const int64_t kind = (map * problem.lanes.batch + problem.lanes.BatchOf(lane)) * orders_ +
                         (order_of_lane_.empty() ? 0 : order_of_lane_[static_cast<size_t>(lane)]);
    int32_t& index = number_[static_cast<size_t>(kind)];
    if (index < 0) {
      index = static_cast<int32_t>(alike_.size());
      alike_.push_back(OneLane(problem, lane));
    } else {
      ++alike_[static_cast<size_t>(index)].count;
    }
  }

  const Plan& plan_;
  int64_t orders_ = 1;                  // different ones
  std::vector<int64_t> order_of_lane_;  // their numbers; empty: all in home order
  std::vector<int32_t> number_;
  std::vector<AlikeLanes> alike_;
};

void AddExchangedKv(const Plan& plan, const BlockMask& mask, LaneSorter& sorter, Demand& demand) {
  std::vector<uint64_t> need(static_cast<size_t>(mask.WordsPerRow()));
  struct Rows {
    int32_t rank;
    Range rows;
  };
  std::vector<Rows> held;
  // Where the mask decides which K/V move, every lane stands for itself.
  std::vector<AlikeLanes> alone;
  if (plan.needed_kv_only()) {
    for (int32_t lane = 0; lane < plan.problem().lanes.Count(); ++lane)
      alone.push_back(OneLane(plan.problem(), lane));
  }
  for (const AlikeLanes& lanes : plan.needed_kv_only() ? std::span(alone) : sorter.All()) {
    held.clear();
    int64_t begin = 0;
    for (const RowRun& run : plan.RunsOf(lanes.lane)) {
      held.push_back({run.rank, {begin, run.end}});
      begin = run.end;
    }
    std::stable_sort(held.begin(), held.end(),
                     [](const Rows& a, const Rows& b) { return a.rank < b.rank; });
    for (size_t i = 0; i < held.size();) {
      const int32_t rank = held[i].rank;
      std::fill(need.begin(), need.end(), 0);
      for (; i < held.size() && held[i].rank == rank; ++i) {
        if (plan.needed_kv_only()) AddNeed(mask, lanes.lane, held[i].rows, need);
      }
      if (plan.needed_kv_only()) {
        ForEachBitRange(need, [&](Range blocks) { demand.Add(lanes, blocks, rank); });
      } else {
        demand.Add(lanes, {0, mask.KvBlocks()}, rank);
      }
    }
  }
}

// Adds `amount` to `count` ring ranks from `first` on, around the ring, as differences; change: [R
// + 1].
void AddAround(std::vector<int64_t>& change, int32_t first, int32_t count, int64_t amount) {
  const int32_t ring_size = static_cast<int32_t>(change.size()) - 1;
  const int32_t end = first + count;
  change[static_cast<size_t>(first)] += amount;
  if (end <= ring_size) {
    change[static_cast<size_t>(end)] -= amount;
  } else {
    change[static_cast<size_t>(ring_size)] -= amount;
    change[0] += amount;
    change[static_cast<size_t>(end - ring_size)] -= amount;
  }
}

// K/V of one ring: to their owners, then around; `sent`, `received`: [ranks] tokens passed on
// inside the ring.
class RingKv {
 public:
  RingKv(const Plan& plan, const BlockMask& mask, LaneSorter& sorter, Demand& demand,
         std::vector<int64_t>& sent, std::vector<int64_t>& received)
      : plan_(plan),
        mask_(mask),
        sorter_(sorter),
        demand_(demand),
        sent_(sent),
        received_(received),
        ring_size_(plan.Stages()),
        sent_change_(ring_size_ == 1 ? 0 : static_cast<size_t>(ring_size_) + 1),
        received_change_(sent_change_.size()) {}

  void Add(const RingGroup& ring) {
    if (plan_.needed_kv_only()) {
      RingNeed need(plan_, mask_, ring);
      for (int32_t lane : ring.lanes)
        AddLane(ring, OneLane(plan_.problem(), lane), need.LastStages(lane));
    } else if (ring_size_ == 1) {
      for (const AlikeLanes& lanes : sorter_.OfGroup(ring.lanes))
        demand_.Add(lanes, {0, mask_.KvBlocks()}, ring.ranks[0]);
    } else {
      if (last_stages_.empty()) last_stages_.assign(plan_.KvOwner(ring).size(), ring_size_ - 1);
      for (const AlikeLanes& lanes : sorter_.OfGroup(ring.lanes))
        AddLane(ring, lanes, last_stages_);
    }
    if (ring_size_ == 1) return;
    int64_t sent_now = 0, received_now = 0;
    for (size_t r = 0; r < ring.ranks.size(); ++r) {
      sent_[static_cast<size_t>(ring.ranks[r])] += sent_now += std::exchange(sent_change_[r], 0);
      received_[static_cast<size_t>(ring.ranks[r])] += received_now +=
          std::exchange(received_change_[r], 0);
    }
    sent_change_.back() = received_change_.back() = 0;
  }

 private:
  void AddLane(const RingGroup& ring, const AlikeLanes& lanes,
               const std::vector<int32_t>& last_stages) {
    const BlockGrid& grid = mask_.grid();
    const std::vector<int32_t>& kv_owner = plan_.KvOwner(ring);
    for (size_t begin = 0; begin < last_stages.size();) {
      const int32_t owner = kv_owner[begin], last = last_stages[begin];
      size_t end = begin + 1;
      while (end < last_stages.size() && kv_owner[end] == owner && last_stages[end] == last) ++end;
      const Range blocks{static_cast<int64_t>(begin), static_cast<int64_t>(end)};
      begin = end;
      if (last == kNeverNeeded) continue;
      demand_.Add(lanes, blocks, ring.ranks[static_cast<size_t>(owner)]);
      if (last == 0) continue;
      // Handed on by ring ranks owner, owner - 1, ..., `last` of them, each to the one below.
      const int64_t tokens =
          grid.KvBlockTokens(blocks.end - 1).end - grid.KvBlockTokens(blocks.begin).begin;
      AddAround(sent_change_, (owner - last + 1 + ring_size_) % ring_size_, last,
                tokens * lanes.count);
      AddAround(received_change_, (owner - last + ring_size_) % ring_size_, last,
                tokens * lanes.count);
    }
  }

  const Plan& plan_;
  const BlockMask& mask_;
  LaneSorter& sorter_;
  Demand& demand_;
  std::vector<int64_t>& sent_;
  std::vector<int64_t>& received_;
  int32_t ring_size_;
  std::vector<int64_t> sent_change_, received_change_;  // [R + 1] differences around the ring
  std::vector<int32_t> last_stages_;                    // [kv_blocks]
};

}  // namespace

int64_t Traffic::Max() const {
  int64_t max = 0;
  for (int32_t rank = 0; rank < std::ssize(sent); ++rank) max = std::max(max, OfRank(rank));
  return max;
}

double Traffic::Mean() const {
  int64_t sum = 0;
  for (int32_t rank = 0; rank < std::ssize(sent); ++rank) sum += OfRank(rank);
  return sent.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(sent.size());
}

void AddMeansTraffic(const Plan& plan, const HomeMap& homes, const LaneMasks& masks,
                     const WireFormat& wire, Traffic& traffic) {
  if (masks.tails().empty()) return;
  std::vector<int64_t> parts(static_cast<size_t>(plan.ranks()));  // blocks of the lane, by home
  std::vector<bool> computes(parts.size());
  for (int64_t lane = 0; lane < plan.problem().lanes.Count(); ++lane) {
    if (masks.TailOf(lane) == Tail::kNone) continue;
    std::fill(parts.begin(), parts.end(), 0);
    for (int64_t block = 0; block < masks.blocks().KvBlocks(); ++block) {
      homes.ForEachPart(Side::kKey, lane, {block, block + 1},
                        [&](int32_t home, int64_t) { ++parts[static_cast<size_t>(home)]; });
    }
    std::fill(computes.begin(), computes.end(), false);
    for (const RowRun& run : plan.RunsOf(lane)) computes[static_cast<size_t>(run.rank)] = true;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      for (size_t home = 0; home < parts.size() && computes[rank]; ++home) {
        if (home == rank) continue;
        traffic.sent[home] += parts[home] * wire.MeansBytes();
        traffic.received[rank] += parts[home] * wire.MeansBytes();
      }
    }
  }
}

Traffic CountTraffic(const Plan& plan, const HomeMap& homes, const BlockMask& mask,
                     const WireFormat& wire) {
  const size_t ranks = static_cast<size_t>(plan.ranks());
  Demand q(plan.problem(), homes, Side::kQuery), kv(plan.problem(), homes, Side::kKey);
  LaneSorter sorter(plan);
  for (const AlikeLanes& lanes : sorter.All()) {
    int64_t begin = 0;
    for (const RowRun& run : plan.RunsOf(lanes.lane)) {
      q.Add(lanes, {begin, run.end}, run.rank);
      begin = run.end;
    }
  }
  // First the K/V tokens passed on inside rings, at the end bytes.
  Traffic traffic{.sent = std::vector<int64_t>(ranks), .received = std::vector<int64_t>(ranks)};
  if (plan.movement() == Movement::kExchange) {
    AddExchangedKv(plan, mask, sorter, kv);
  } else {
    RingKv around(plan, mask, sorter, kv, traffic.sent, traffic.received);
    for (const RingGroup& ring : plan.rings()) around.Add(ring);
  }
  q.Resolve();
  kv.Resolve();
  for (size_t r = 0; r < ranks; ++r) {
    traffic.sent[r] = q.FromHome(r) * wire.QBytes() +
                      (kv.FromHome(r) + traffic.sent[r]) * wire.KvBytes() +
                      q.ToRank(r) * wire.OBytes();
    traffic.received[r] = q.ToRank(r) * wire.QBytes() +
                          (kv.ToRank(r) + traffic.received[r]) * wire.KvBytes() +
                          q.FromHome(r) * wire.OBytes();
  }
  return traffic;
}

}  // namespace equitile
