#include "equitile/plan/planners/fractional/fractional_pack.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "equitile/base/hash.h"

namespace equitile {
namespace {

// Up to two lanes of a rank.
struct Bundle {
  std::array<int32_t, 2> lanes = {-1, -1};
  int64_t cost = 0;

  int64_t Count() const { return (lanes[0] >= 0) + (lanes[1] >= 0); }
};

class Packer {
 public:
  explicit Packer(const PackProblem& problem)
      : problem_(problem),
        owner_(problem.cost.size(), -1),
        excess_(problem.room.size()),
        lanes_of_(problem.room.size()) {
    std::transform(problem.room.begin(), problem.room.end(), excess_.begin(),
                   [](double room) { return -room; });
  }

  void Greedy() {
    for (int32_t lane : Order()) {
      const Range ranks = problem_.eligible[Index(lane)];
      int64_t best = -1;
      for (const bool limited : {true, false}) {
        for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
          if (limited && std::ssize(lanes_of_[Index(rank)]) >= problem_.most_lanes) continue;
          if (best < 0 || excess_[Index(rank)] < excess_[Index(best)]) best = rank;
        }
        if (best >= 0) break;
      }
      Add(lane, best);
    }
  }

  void Improve() {
    constexpr int kSweeps = 12;  // three to six are usual until nothing improves
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      const std::vector<int32_t> ranks = RanksByExcess();
      const size_t pairs_with = PartnersOf(ranks.size());
      bool improved = false;
      for (size_t a = 0; a < ranks.size(); ++a) {
        for (size_t i = 0; i < std::min(ranks.size() - 1 - a, pairs_with); ++i) {
          improved |= ImprovePair(ranks[a], ranks[ranks.size() - 1 - i]);
        }
        if (a >= pairs_with) break;
      }
      if (!improved) return;
    }
  }

  std::vector<int32_t> TakeOwners() { return std::move(owner_); }

 private:
  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  // All pairs of few ranks; of many only the ends of the scale, so that a sweep stays linear.
  static size_t PartnersOf(size_t ranks) { return ranks <= 48 ? ranks : 8; }

  std::vector<int32_t> Order() const {
    std::vector<int32_t> order(problem_.cost.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<int64_t> key = problem_.cost;
    if (problem_.variant != 0) {
      for (size_t i = 0; i < key.size(); ++i) {  // by up to a quarter
        const int64_t dice = static_cast<int64_t>(MixBits(problem_.variant * 1000003 + i) % 256);
        key[i] += key[i] / 512 * (dice - 128);
      }
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return key[Index(a)] > key[Index(b)]; });
    return order;
  }

  std::vector<int32_t> RanksByExcess() const {
    std::vector<int32_t> ranks(excess_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int32_t a, int32_t b) { return excess_[Index(a)] > excess_[Index(b)]; });
    return ranks;
  }

  void Add(int32_t lane, int64_t rank) {
    owner_[Index(lane)] = static_cast<int32_t>(rank);
    lanes_of_[Index(rank)].push_back(lane);
    excess_[Index(rank)] += static_cast<double>(problem_.cost[Index(lane)]);
  }
  void Remove(int32_t lane) {
    const size_t rank = Index(owner_[Index(lane)]);
    std::erase(lanes_of_[rank], lane);
    excess_[rank] -= static_cast<double>(problem_.cost[Index(lane)]);
  }

  // Ascending by cost within each count.
  std::vector<Bundle> Bundles(int64_t from, int64_t to) const {
    constexpr size_t kMostForPairs = 64;
    std::vector<int32_t> lanes;
    for (int32_t lane : lanes_of_[Index(from)]) {
      if (problem_.eligible[Index(lane)].Contains(to)) lanes.push_back(lane);
    }
    std::vector<Bundle> bundles = {{}};
    for (int32_t lane : lanes) {
      bundles.push_back({.lanes = {lane, -1}, .cost = problem_.cost[Index(lane)]});
    }
    for (size_t i = 0; i < lanes.size() && lanes.size() <= kMostForPairs; ++i) {
      for (size_t j = 0; j < i; ++j) {
        bundles.push_back(
            {.lanes = {lanes[i], lanes[j]},
             .cost = problem_.cost[Index(lanes[i])] + problem_.cost[Index(lanes[j])]});
      }
    }
    std::stable_sort(bundles.begin(), bundles.end(), [](const Bundle& a, const Bundle& b) {
      return a.Count() != b.Count() ? a.Count() < b.Count() : a.cost < b.cost;
    });
    return bundles;
  }

  bool CountAllowed(int64_t rank, int64_t gained, int64_t lost) const {
    const int64_t now = std::ssize(lanes_of_[Index(rank)]);
    return gained <= lost || now + gained - lost <= problem_.most_lanes;
  }

  // Moving a net cost x from a to b changes the sum of squared excesses by -2 x (d - x), d the
  // difference of the two: best at x = d / 2.
  bool ImprovePair(int64_t a, int64_t b) {
    if (excess_[Index(a)] < excess_[Index(b)]) std::swap(a, b);
    const double difference = excess_[Index(a)] - excess_[Index(b)];
    if (difference <= problem_.close_enough) return false;
    const std::vector<Bundle> gives = Bundles(a, b), takes = Bundles(b, a);
    double best_gain = 0.5;
    const Bundle *best_give = nullptr, *best_take = nullptr;
    for (const Bundle& give : gives) {
      const double wanted = static_cast<double>(give.cost) - difference / 2;
      for (auto first = takes.begin(); first != takes.end();) {
        const auto last = std::find_if(
            first, takes.end(), [&](const Bundle& t) { return t.Count() != first->Count(); });
        if (CountAllowed(b, give.Count(), first->Count()) &&
            CountAllowed(a, first->Count(), give.Count())) {
          auto near = std::lower_bound(first, last, wanted, [](const Bundle& t, double cost) {
            return static_cast<double>(t.cost) < cost;
          });
          if (near != first) --near;
          for (int i = 0; i < 2 && near != last; ++i, ++near) {
            const double net = static_cast<double>(give.cost - near->cost);
            const double gain = net * (difference - net);
            if (gain > best_gain) {
              best_gain = gain;
              best_give = &give;
              best_take = &*near;
            }
          }
        }
        first = last;
      }
    }
    if (best_give == nullptr) return false;
    Exchange(*best_give, b);
    Exchange(*best_take, a);
    return true;
  }

  void Exchange(const Bundle& bundle, int64_t to) {
    for (int32_t lane : bundle.lanes) {
      if (lane < 0) continue;
      Remove(lane);
      Add(lane, to);
    }
  }

  const PackProblem& problem_;
  std::vector<int32_t> owner_;                  // [lanes]
  std::vector<double> excess_;                  // [ranks]
  std::vector<std::vector<int32_t>> lanes_of_;  // [ranks]
};

}  // namespace

std::vector<int32_t> PackLanes(const PackProblem& problem) {
  Packer packer(problem);
  packer.Greedy();
  packer.Improve();
  return packer.TakeOwners();
}

}  // namespace equitile
