#include "equitile/plan/planners/dbsp/dbsp_lanes.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "equitile/base/range.h"
#include "equitile/plan/planners/dbsp/dbsp_partition.h"

namespace equitile {
namespace {

// Pairs of lanes are only tried in groups up to this size: 190² exchanges. Larger groups have so
// many single exchanges that nothing is left to gain.
constexpr int64_t kMostLanesForPairs = 20;
// Disturbed starts end after this many tried exchanges, about a millisecond.
constexpr int64_t kWork = 300'000;
constexpr int64_t kMostRounds = 400;

class LaneGroups {
 public:
  LaneGroups(std::span<const int64_t> weights, int64_t groups)
      : weights_(weights), lanes_(static_cast<size_t>(groups)), load_(lanes_.size()) {
    const Partition greedy = BiasedGreedy(weights, groups, {}, 0);
    for (int32_t lane : greedy.order) {
      const auto group = static_cast<size_t>(greedy.owner[static_cast<size_t>(lane)]);
      lanes_[group].push_back(lane);
      load_[group] += weights[static_cast<size_t>(lane)];
    }
  }

  // Exchanges until no two groups can be brought closer.
  void Descend() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t a = 0; a < lanes_.size(); ++a) {
        for (size_t b = a + 1; b < lanes_.size(); ++b) changed |= Approach(a, b);
      }
    }
  }

  // Exchanges one arbitrary lane of the heaviest group and of each of two others.
  void Disturb() {
    for (int k = 0; k < 2; ++k) {
      const auto a =
          static_cast<size_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
      const size_t b = Random(lanes_.size());
      if (a == b || lanes_[a].empty() || lanes_[b].empty()) continue;
      const size_t i = Random(lanes_[a].size());  // in this order, whatever the compiler's is
      const size_t j = Random(lanes_[b].size());
      Exchange(a, i, b, j);
    }
  }

  int64_t Heaviest() const { return *std::max_element(load_.begin(), load_.end()); }
  int64_t work() const { return work_; }
  std::vector<std::vector<int32_t>> Take() {
    for (auto& group : lanes_) std::sort(group.begin(), group.end());
    return std::move(lanes_);
  }
  void Restore(const LaneGroups& other) {
    lanes_ = other.lanes_;
    load_ = other.load_;
  }

 private:
  int64_t Weight(size_t group, size_t k) const {
    return weights_[static_cast<size_t>(lanes_[group][k])];
  }
  size_t Random(size_t below) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((random_ >> 33) % below);
  }
  void Exchange(size_t a, size_t i, size_t b, size_t j) {
    const int64_t shift = Weight(a, i) - Weight(b, j);
    std::swap(lanes_[a][i], lanes_[b][j]);
    load_[a] -= shift;
    load_[b] += shift;
  }

  // The exchange of one or two lanes that leaves the smallest gap, if it is smaller than now.
  bool Approach(size_t a, size_t b) {
    const int64_t gap = load_[a] - load_[b];
    int64_t best = std::abs(gap);
    const size_t m = lanes_[a].size(), n = lanes_[b].size();
    size_t i1 = m, i2 = m, j1 = n, j2 = n;
    work_ += static_cast<int64_t>(m * n);
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) {
        const int64_t left = std::abs(gap - 2 * (Weight(a, i) - Weight(b, j)));
        if (left < best) {
          best = left;
          i1 = i;
          j1 = j;
        }
      }
    }
    if (static_cast<int64_t>(std::max(m, n)) <= kMostLanesForPairs && best > 1) {
      work_ += static_cast<int64_t>(m * m * n * n / 4);
      for (size_t i = 0; i < m; ++i) {
        for (size_t k = i + 1; k < m; ++k) {
          const int64_t pair = Weight(a, i) + Weight(a, k);
          for (size_t j = 0; j < n; ++j) {
            for (size_t l = j + 1; l < n; ++l) {
              const int64_t left = std::abs(gap - 2 * (pair - Weight(b, j) - Weight(b, l)));
              if (left < best) {
                best = left;
                i1 = i, i2 = k, j1 = j, j2 = l;
              }
            }
          }
        }
      }
    }
    if (i1 == m) return false;
    Exchange(a, i1, b, j1);
    if (i2 != m) Exchange(a, i2, b, j2);
    return true;
  }

  std::span<const int64_t> weights_;
  std::vector<std::vector<int32_t>> lanes_;
  std::vector<int64_t> load_;
  uint64_t random_ = 1;
  int64_t work_ = 0;
};

// The mean, and the heaviest lane with as many of the lightest as must keep it company.
int64_t HeaviestGroupAtLeast(std::span<const int64_t> weights, int64_t groups) {
  std::vector<int64_t> sorted(weights.begin(), weights.end());
  std::sort(sorted.begin(), sorted.end());
  const int64_t total = std::accumulate(sorted.begin(), sorted.end(), int64_t{0});
  const int64_t company = std::max<int64_t>(0, static_cast<int64_t>(sorted.size()) / groups - 1);
  const int64_t heaviest =
      sorted.empty() ? 0 : std::accumulate(sorted.begin(), sorted.begin() + company, sorted.back());
  return std::max(CeilDiv(total, groups), heaviest);
}

}  // namespace

std::vector<std::vector<int32_t>> BalanceLanes(std::span<const int64_t> weights, int64_t groups) {
  LaneGroups now(weights, groups);
  now.Descend();
  LaneGroups best = now;
  const int64_t bound = HeaviestGroupAtLeast(weights, groups);
  for (int64_t round = 0; round < kMostRounds && now.work() < kWork && best.Heaviest() > bound;
       ++round) {
    now.Disturb();
    now.Descend();
    if (now.Heaviest() <= best.Heaviest()) {
      best = now;
    } else {
      now.Restore(best);
    }
  }
  return best.Take();
}

}  // namespace equitile
