#include "equitile/plan/predict/bounds.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace equitile {
namespace {

class BoundFinder {
 public:
  BoundFinder(const Plan& plan, const BlockMask& mask, std::span<const int32_t> row_blocks,
              const CostModel& model)
      : plan_(plan), mask_(mask), row_blocks_(row_blocks), model_(model) {}

  // The least cost of the busiest rank. With speeds: of the heaviest thing that cannot be divided
  // further.
  int64_t OfKind(bool indivisible_only) const {
    if (plan_.movement() == Movement::kRing) return OfRings(indivisible_only);
    if (plan_.KeepsLanesWhole()) {
      const std::vector<int64_t> lanes = LaneCosts(Numbers(mask_.LaneCount()));
      std::vector<int32_t> owner;
      for (int64_t lane = 0; lane < mask_.LaneCount(); ++lane)
        owner.push_back(plan_.RunsOf(lane).front().rank);
      return indivisible_only ? Heaviest(lanes)
                              : LargestPartBound(lanes, plan_.ranks(),
                                                 LeastOwned(owner, Numbers(plan_.ranks())));
    }
    std::vector<int64_t> rows(row_blocks_.size());
    std::transform(row_blocks_.begin(), row_blocks_.end(), rows.begin(),
                   [&](int32_t kept) { return model_.Of(kept); });
    return indivisible_only ? Heaviest(rows) : LargestPartBound(std::move(rows), plan_.ranks(), 0);
  }

 private:
  // Groups that may share lanes: those of one batch item where items have their own ranks, else
  // all.
  int64_t OfRings(bool indivisible_only) const {
    const int64_t batch = plan_.problem().lanes.batch, groups = std::ssize(plan_.rings());
    const int64_t items = groups % batch == 0 && ItemsHaveOwnRings(batch) ? batch : 1;
    int64_t bound = 0;
    for (int64_t item = 0; item < items; ++item) {
      const int64_t item_groups = groups / items;
      bound = std::max(bound, OfItem(std::span(plan_.rings())
                                         .subspan(static_cast<size_t>(item * item_groups),
                                                  static_cast<size_t>(item_groups)),
                                     indivisible_only));
    }
    return bound;
  }

  bool ItemsHaveOwnRings(int64_t batch) const {
    const int64_t item_groups = std::ssize(plan_.rings()) / batch;
    for (size_t g = 0; g < plan_.rings().size(); ++g) {
      for (int32_t lane : plan_.rings()[g].lanes) {
        if (plan_.problem().lanes.BatchOf(lane) != static_cast<int64_t>(g) / item_groups)
          return false;
      }
    }
    return true;
  }

  int64_t OfItem(std::span<const RingGroup> rings, bool indivisible_only) const {
    const int64_t ring_size = plan_.Stages();
    std::vector<int32_t> lanes;
    int64_t least = plan_.problem().lanes.Count();
    for (const RingGroup& ring : rings) {
      lanes.insert(lanes.end(), ring.lanes.begin(), ring.lanes.end());
      least = std::min(least, std::ssize(ring.lanes));
    }
    const std::vector<int64_t> costs = LaneCosts(lanes);
    const int64_t group =
        indivisible_only ? Heaviest(costs) : LargestPartBound(costs, std::ssize(rings), least);
    // A group's sum of maxima is at least its mean rank's cost.
    const int64_t bound = (group + ring_size - 1) / ring_size;
    if (rings.size() > 1 || indivisible_only || !OneRowMap(lanes)) return bound;
    // All lanes in one group: a rank has a query row of all lanes, and in the course of the stages
    // all of a key column.
    const std::vector<int32_t> q_owner = plan_.RowOwners(lanes.front());
    return std::max(
        {bound, LargestPartBound(RowSums(lanes), ring_size, LeastOwned(q_owner, rings[0].ranks)),
         LargestPartBound(ColumnSums(lanes), ring_size,
                          LeastOwned(plan_.KvOwner(rings[0]), Numbers(ring_size)))});
  }

  bool OneRowMap(const std::vector<int32_t>& lanes) const {
    const std::vector<int32_t>& map = plan_.parts().map_of_lane;
    return !lanes.empty() && std::all_of(lanes.begin(), lanes.end(), [&](int32_t lane) {
      return map[static_cast<size_t>(lane)] == map[static_cast<size_t>(lanes.front())];
    });
  }

  // The fewest blocks that one of `members` owns.
  static int64_t LeastOwned(const std::vector<int32_t>& owner,
                            const std::vector<int32_t>& members) {
    int64_t least = std::ssize(owner);
    for (int32_t member : members)
      least = std::min<int64_t>(least, std::count(owner.begin(), owner.end(), member));
    return least;
  }

  static std::vector<int32_t> Numbers(int64_t count) {
    std::vector<int32_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }

  static int64_t Heaviest(const std::vector<int64_t>& costs) {
    return costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
  }

  std::vector<int64_t> LaneCosts(const std::vector<int32_t>& lanes) const {
    std::vector<int64_t> costs;
    for (int32_t lane : lanes) {
      int64_t cost = 0;
      for (int64_t row = 0; row < mask_.QBlocks(); ++row) cost += CostOfRow(lane, row);
      costs.push_back(cost);
    }
    return costs;
  }

  int64_t CostOfRow(int64_t lane, int64_t row) const {
    return model_.Of(row_blocks_[static_cast<size_t>(lane * mask_.QBlocks() + row)]);
  }

  std::vector<int64_t> RowSums(const std::vector<int32_t>& lanes) const {
    std::vector<int64_t> sums(static_cast<size_t>(mask_.QBlocks()), 0);
    for (int32_t lane : lanes) {
      for (int64_t row = 0; row < mask_.QBlocks(); ++row)
        sums[static_cast<size_t>(row)] += CostOfRow(lane, row);
    }
    return sums;
  }

  // Blocks only: how many parts of rows a column's owner makes is not known.
  std::vector<int64_t> ColumnSums(const std::vector<int32_t>& lanes) const {
    std::vector<int64_t> sums(static_cast<size_t>(mask_.KvBlocks()), 0);
    for (int32_t lane : lanes) {
      for (int64_t row = 0; row < mask_.QBlocks(); ++row) {
        mask_.ForEachKept(lane, row,
                          [&](int64_t block) { sums[static_cast<size_t>(block)] += model_.block; });
      }
    }
    return sums;
  }

  const Plan& plan_;
  const BlockMask& mask_;
  std::span<const int32_t> row_blocks_;
  CostModel model_;
};

}  // namespace

int64_t LargestPartBound(std::vector<int64_t> weights, int64_t parts, int64_t least) {
  std::sort(weights.begin(), weights.end(), std::greater<>());
  const int64_t count = std::ssize(weights);
  std::vector<int64_t> sum(static_cast<size_t>(count) + 1, 0);  // of the heaviest i
  std::partial_sum(weights.begin(), weights.end(), sum.begin() + 1);
  auto range_sum = [&](int64_t begin, int64_t end) {
    return sum[static_cast<size_t>(end)] - sum[static_cast<size_t>(begin)];
  };
  int64_t bound = (sum.back() + parts - 1) / parts;
  for (int64_t t = 0; t * parts + 1 <= count; ++t) {
    const int64_t heavy = t * parts + 1;  // some part has t + 1 of these
    const int64_t fill = std::clamp<int64_t>(least - (t + 1), 0, count - heavy);
    bound = std::max(bound, range_sum(heavy - (t + 1), heavy) + range_sum(count - fill, count));
  }
  return bound;
}

LowerBounds FindBounds(const Plan& plan, const BlockMask& mask, std::span<const int32_t> row_blocks,
                       const Imbalance& imbalance, const CostModel& model,
                       std::span<const double> speeds) {
  LowerBounds bounds;
  if (imbalance.total == 0) return bounds;
  const BoundFinder finder(plan, mask, row_blocks, model);
  const double total = static_cast<double>(imbalance.total);
  const int64_t kept = std::accumulate(row_blocks.begin(), row_blocks.end(), int64_t{0});
  if (speeds.empty()) {
    const int32_t ranks = plan.ranks();
    // A rank with ceil(kept / ranks) blocks also has at least one row.
    const int64_t any = (kept + ranks - 1) / ranks * model.block + model.row;
    bounds.any = std::max(1.0, static_cast<double>(any) * ranks / total);
    bounds.kind = std::max(bounds.any, static_cast<double>(finder.OfKind(false)) * ranks / total);
  } else {
    const double shares = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    const double fastest = *std::max_element(speeds.begin(), speeds.end());
    auto ratio = [&](int64_t cost) { return static_cast<double>(cost) / fastest * shares / total; };
    bounds.any = std::max(1.0, ratio(model.block + model.row));
    bounds.kind = std::max(bounds.any, ratio(finder.OfKind(true)));
  }
  return bounds;
}

}  // namespace equitile
