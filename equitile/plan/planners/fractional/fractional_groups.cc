#include "equitile/plan/planners/fractional/fractional_groups.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace equitile {
namespace {

enum class Order { kArrivesFirst, kLeavesLast, kArrivesFirstLeavesLast };
constexpr std::array kOrders = {Order::kArrivesFirst, Order::kLeavesLast,
                                Order::kArrivesFirstLeavesLast};

// Johnson's rule for two machines in a row: best possible if the third takes no time.
bool JohnsonBefore(double a_first, double a_second, double b_first, double b_second) {
  const bool a_early = a_first < a_second, b_early = b_first < b_second;
  if (a_early != b_early) return a_early;
  return a_early ? a_first < b_first : a_second > b_second;
}

// Shares by rank, each rank's in the given order.
std::vector<int32_t> Ordered(std::span<const LaneShare> shares, Order kind) {
  std::vector<int32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  const auto share = [&](int32_t i) -> const LaneShare& { return shares[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
    const LaneShare &a = share(i), &b = share(j);
    if (a.rank != b.rank) return a.rank < b.rank;
    return kind == Order::kLeavesLast ? JohnsonBefore(a.compute_seconds, a.output_seconds,
                                                      b.compute_seconds, b.output_seconds)
                                      : JohnsonBefore(a.input_seconds, a.compute_seconds,
                                                      b.input_seconds, b.compute_seconds);
  });
  if (kind != Order::kArrivesFirstLeavesLast) return order;
  for (auto first = order.begin(); first != order.end();) {
    const auto last = std::find_if(first, order.end(),
                                   [&](int32_t i) { return share(i).rank != share(*first).rank; });
    const auto quickest = std::min_element(first, last, [&](int32_t i, int32_t j) {
      return share(i).output_seconds < share(j).output_seconds;
    });
    std::rotate(quickest, quickest + 1, last);
    first = last;
  }
  return order;
}

class Pipeline {
 public:
  Pipeline(std::span<const LaneShare> shares, int32_t ranks, double latency_seconds, Order order)
      : shares_(shares), ranks_(ranks), latency_(latency_seconds), order_(Ordered(shares, order)) {}

  // [shares] group, when there are `groups` of them.
  std::vector<int32_t> Groups(int32_t groups) const {
    std::vector<int32_t> group(shares_.size(), 0);
    for (size_t first = 0; first < order_.size();) {
      const int32_t rank = At(first).rank;
      double total = 0;
      size_t last = first;
      for (; last < order_.size() && At(last).rank == rank; ++last) {
        total += At(last).compute_seconds;
      }
      double before = 0;
      for (; first < last; ++first) {
        const double middle = before + At(first).compute_seconds / 2;
        const double place = total > 0 ? middle / total * groups : 0;
        group[static_cast<size_t>(order_[first])] =
            std::min(groups - 1, static_cast<int32_t>(place));
        before += At(first).compute_seconds;
      }
    }
    return group;
  }

  // Seconds until the last output is at home. Homes push group after group; a rank takes in the
  // next group while it computes one.
  double Seconds(const std::vector<int32_t>& group, int32_t groups) const {
    std::vector<Stage> stages(static_cast<size_t>(ranks_) * static_cast<size_t>(groups));
    std::vector<double> pushed(static_cast<size_t>(groups), 0);
    for (size_t i = 0; i < shares_.size(); ++i) {
      const LaneShare& share = shares_[i];
      Stage& stage = stages[static_cast<size_t>(share.rank) * static_cast<size_t>(groups) +
                            static_cast<size_t>(group[i])];
      stage.input += share.input_seconds;
      stage.compute += share.compute_seconds;
      stage.output += share.output_seconds;
      pushed[static_cast<size_t>(group[i])] += share.input_seconds / ranks_;
    }
    std::partial_sum(pushed.begin(), pushed.end(), pushed.begin());
    double end = 0;
    for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
      double begun = 0, computed = 0, received = 0, returned = 0;
      for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
        const Stage& stage = stages[rank * static_cast<size_t>(groups) + g];
        received = std::max(received, begun) + stage.input;
        const double arrived =
            stage.input > 0 ? std::max(received, pushed[g]) + latency_ : received;
        begun = std::max(computed, arrived);
        computed = begun + stage.compute;
        if (stage.output > 0) returned = std::max(returned, computed) + stage.output + latency_;
      }
      end = std::max({end, computed, returned});
    }
    return end;
  }

 private:
  struct Stage {
    double input = 0, compute = 0, output = 0;
  };

  const LaneShare& At(size_t place) const { return shares_[static_cast<size_t>(order_[place])]; }

  std::span<const LaneShare> shares_;
  int32_t ranks_;
  double latency_;
  std::vector<int32_t> order_;  // of shares
};

}  // namespace

std::vector<int32_t> GroupShares(std::span<const LaneShare> shares, int32_t ranks,
                                 double latency_seconds) {
  std::vector<int32_t> best(shares.size(), 0);
  double best_seconds =
      Pipeline(shares, ranks, latency_seconds, Order::kArrivesFirst).Seconds(best, 1);
  for (Order order : kOrders) {
    const Pipeline pipeline(shares, ranks, latency_seconds, order);
    for (int32_t groups = 2; groups <= kMostGroups; groups += groups < 4 ? 1 : groups / 2) {
      std::vector<int32_t> group = pipeline.Groups(groups);
      // A group more must be worth the latency that the pipeline hides but the processor pays.
      const double seconds = pipeline.Seconds(group, groups) + (groups - 1) * latency_seconds;
      if (seconds < best_seconds) {
        best_seconds = seconds;
        best = std::move(group);
      }
    }
  }
  return best;
}

}  // namespace equitile
