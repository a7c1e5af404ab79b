#include "equitile/plan/planners/dbsp/dbsp_partition.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>

namespace equitile {
namespace {

// Of equal weights the lower index first. Few are inserted, many sorted by counting, a byte of the
// distance to the heaviest at a time: std::sort takes longer than the rest of a small plan.
std::vector<int32_t> ByDescendingWeight(std::span<const int64_t> weights) {
  constexpr size_t kFew = 24;
  std::vector<int32_t> order(weights.size());
  if (weights.size() <= kFew) {
    for (size_t item = 0; item < weights.size(); ++item) {
      size_t slot = item;
      for (; slot > 0 && weights[static_cast<size_t>(order[slot - 1])] < weights[item]; --slot)
        order[slot] = order[slot - 1];
      order[slot] = static_cast<int32_t>(item);
    }
    return order;
  }
  std::iota(order.begin(), order.end(), 0);
  std::vector<int32_t> from(weights.size());
  const auto [lightest, heaviest] = std::minmax_element(weights.begin(), weights.end());
  const int64_t top = *heaviest, range = top - *lightest;
  for (int shift = 0; range >> shift > 0; shift += 8) {
    std::swap(order, from);
    std::array<int32_t, 257> next{};
    const auto digit = [&](int32_t item) {
      return static_cast<size_t>((top - weights[static_cast<size_t>(item)]) >> shift & 255);
    };
    for (int32_t item : from) ++next[digit(item) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (int32_t item : from) order[static_cast<size_t>(next[digit(item)]++)] = item;
  }
  return order;
}

// The first of the smallest.
size_t LeastLoaded(std::span<const double> load) {
  size_t best = 0;
  double least = load[0];
  for (size_t part = 1; part < load.size(); ++part) {
    const bool less =
        load[part] < least;  // without branches: which part it is is never foreseeable
    least = less ? load[part] : least;
    best = less ? part : best;
  }
  return best;
}

constexpr int64_t kSwapCandidates = 5;
constexpr int64_t kSwapRounds = 100;

struct Candidates {
  std::array<int64_t, kSwapCandidates> position;  // in the part's list
  int64_t count = 0;
};

// The first five of a part's list in the order `before`, equal ones in list order.
template <typename Before>
Candidates FirstFive(const std::vector<int32_t>& list, std::span<const int64_t> weights,
                     Before before) {
  Candidates best;
  const auto weight = [&](int64_t position) {
    return weights[static_cast<size_t>(list[static_cast<size_t>(position)])];
  };
  for (int64_t p = 0; p < static_cast<int64_t>(list.size()); ++p) {
    int64_t slot = best.count;
    while (slot > 0 && before(weight(p), weight(best.position[static_cast<size_t>(slot - 1)])))
      --slot;
    if (slot == kSwapCandidates) continue;
    best.count = std::min(best.count + 1, kSwapCandidates);
    for (int64_t k = best.count - 1; k > slot; --k) {
      best.position[static_cast<size_t>(k)] = best.position[static_cast<size_t>(k - 1)];
    }
    best.position[static_cast<size_t>(slot)] = p;
  }
  return best;
}

}  // namespace

Partition BiasedGreedy(std::span<const int64_t> weights, int64_t parts,
                       std::span<const int32_t> home, double reward) {
  const int64_t items = static_cast<int64_t>(weights.size());
  const int64_t floor = items / parts;
  int64_t larger_left = items % parts;
  // Loads of open parts; a closed part has an infinite one. Exact: sums stay far below 2^53.
  constexpr double kClosed = std::numeric_limits<double>::infinity();
  std::vector<double> load(static_cast<size_t>(parts), 0.0);
  std::vector<int64_t> size(static_cast<size_t>(parts));

  Partition out{std::vector<int32_t>(weights.size()), ByDescendingWeight(weights)};
  for (int32_t item : out.order) {
    const double weight = static_cast<double>(weights[static_cast<size_t>(item)]);
    size_t best = 0;
    if (home.empty()) {
      best = LeastLoaded(load);
    } else {
      // The bonus stands in the loads while they are compared: an infinite load stays infinite.
      double& favoured = load[static_cast<size_t>(home[static_cast<size_t>(item)])];
      const double true_load = favoured;
      favoured -= reward * weight;
      best = LeastLoaded(load);
      favoured = true_load;
    }
    out.owner[static_cast<size_t>(item)] = static_cast<int32_t>(best);
    load[best] += weight;
    if (++size[best] <= floor) {
      if (size[best] == floor && larger_left == 0) load[best] = kClosed;
      continue;
    }
    load[best] = kClosed;
    if (--larger_left == 0) {
      for (size_t part = 0; part < size.size(); ++part) {
        if (size[part] >= floor) load[part] = kClosed;
      }
    }
  }
  return out;
}

std::vector<int32_t> SwapPartition(std::span<const int64_t> weights, int64_t parts,
                                   std::span<const int32_t> home) {
  std::vector<std::vector<int32_t>> list(static_cast<size_t>(parts));
  std::vector<int64_t> load(static_cast<size_t>(parts));
  for (size_t item = 0; item < weights.size(); ++item) {
    list[static_cast<size_t>(home[item])].push_back(static_cast<int32_t>(item));
    load[static_cast<size_t>(home[item])] += weights[item];
  }
  for (int64_t round = 0; round < kSwapRounds; ++round) {
    const auto hi = static_cast<size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    const auto lo = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    if (load[hi] == load[lo]) break;
    const Candidates heavy = FirstFive(list[hi], weights, std::greater<>());
    const Candidates light = FirstFive(list[lo], weights, std::less<>());
    int64_t best_gain = 0, best_heavy = 0, best_light = 0, best_shift = 0;
    for (int64_t h = 0; h < heavy.count; ++h) {
      for (int64_t l = 0; l < light.count; ++l) {
        const int64_t hp = heavy.position[static_cast<size_t>(h)],
                      lp = light.position[static_cast<size_t>(l)];
        const int64_t shift = weights[static_cast<size_t>(list[hi][static_cast<size_t>(hp)])] -
                              weights[static_cast<size_t>(list[lo][static_cast<size_t>(lp)])];
        const int64_t gap = load[hi] - load[lo];
        const int64_t gain = gap - std::abs(gap - 2 * shift);
        if (gain > best_gain) {
          best_gain = gain;
          best_heavy = hp;
          best_light = lp;
          best_shift = shift;
        }
      }
    }
    if (best_gain <= 0) break;
    const int32_t down = list[hi][static_cast<size_t>(best_heavy)],
                  up = list[lo][static_cast<size_t>(best_light)];
    list[hi].erase(list[hi].begin() + best_heavy);
    list[lo].erase(list[lo].begin() + best_light);
    list[hi].push_back(up);
    list[lo].push_back(down);
    load[hi] -= best_shift;
    load[lo] += best_shift;
  }
  std::vector<int32_t> owner(weights.size());
  for (size_t part = 0; part < list.size(); ++part) {
    for (int32_t item : list[part]) owner[static_cast<size_t>(item)] = static_cast<int32_t>(part);
  }
  return owner;
}

}  // namespace equitile
