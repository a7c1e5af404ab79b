// Random problems, masks and plans for the property tests of this room: awkward sizes on purpose,
// and plans that no planner would make, since everything after the planners must be right for any
// plan.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <random>
#include <vector>

#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/core/plan.h"
#include "equitile/plan/planners/static_planner.h"

namespace equitile::testing {

// Blocks in the problem's orders.
inline LaneMasks MasksFor(const Problem& problem, const BlockMask& blocks) {
  return LaneMasks(
      {.blocks = blocks, .token_grid = problem.token_grid, .orders = problem.orders, .tails = {}});
}

// Everything follows from one seed and a size, so that a failing case shrinks to small sizes and
// can be named by two numbers.
class RandomCase {
 public:
  explicit RandomCase(uint64_t seed, int64_t size) : engine_(seed), size_(size) {}

  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(engine_) < p; }
  int64_t Sized(int64_t low, int64_t high) {
    return Between(low, std::max(low, std::min(high, low + (high - low) * size_ / 100)));
  }

  Problem MakeProblem() {
    Problem problem;
    problem.ranks = static_cast<int32_t>(Sized(1, 64));
    problem.lanes = {.batch = Chance(0.3) ? Between(2, 3) : 1, .heads = Sized(1, 64)};
    const int64_t block = 16 * Between(1, 8);
    if (Chance(0.4)) {
      problem.token_grid = {.frames = Between(1, 6),
                            .height = Between(1, 12),
                            .width = Sized(1, 12),
                            .text_before = Between(0, 1) * Between(0, 40),
                            .text_after = Between(0, 1) * Between(0, 40)};
      if (Chance(0.2)) problem.token_grid.home = AnyOrder();
      const int64_t tokens = problem.token_grid.Tokens();
      problem.grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = block};
      for (int64_t lane = 0; lane < problem.lanes.Count(); ++lane) {
        problem.orders.push_back(AnyOrder());
      }
    } else {
      const int64_t q_tokens = Sized(1, 200 * 64 / 4);
      problem.grid = {.q_tokens = q_tokens,
                      .kv_tokens = Chance(0.2) ? Sized(1, 2000) : q_tokens,
                      .block_tokens = block};
    }
    if (problem.grid.q_tokens == problem.grid.kv_tokens && Chance(0.3))
      problem.homes = Homes(problem);
    return CheckedProblem(problem);
  }

  TokenOrder AnyOrder() {
    const auto kind = static_cast<size_t>(Between(0, 7));
    if (kind < kAxisOrders.size()) return kAxisOrders[kind];
    return kind == 6 ? TokenOrder::kHilbert
                     : TokenOrder::Tiles(Between(1, 3), Between(1, 4), Between(1, 5));
  }

  // Cuts anywhere, some of them in the same place.
  std::vector<int64_t> Homes(const Problem& problem) {
    std::vector<int64_t> homes;
    for (int64_t item = 0; item < problem.lanes.batch; ++item) {
      std::vector<int64_t> cuts = {0};
      while (std::ssize(cuts) < problem.ranks)
        cuts.push_back(Chance(0.2) ? cuts.back() : Between(0, problem.grid.q_tokens));
      std::sort(cuts.begin(), cuts.end());
      homes.insert(homes.end(), cuts.begin(), cuts.end());
    }
    return homes;
  }

  BlockMask MakeMask(const Problem& problem) {
    BlockMask mask(problem.lanes, problem.grid);
    const int kind = static_cast<int>(Between(0, 9));
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      const double density = kind == 0   ? 0
                             : kind == 1 ? 1
                             : Chance(0.1)
                                 ? 1
                                 : std::uniform_real_distribution<double>(0, 0.7)(engine_);
      const uint64_t threshold = static_cast<uint64_t>(density * 4294967296.0);
      for (int64_t q = 0; q < mask.QBlocks(); ++q) {
        if (kind != 1 && Chance(0.1)) continue;
        for (int64_t k = 0; k < mask.KvBlocks(); ++k) {
          if ((engine_() >> 32) < threshold) mask.Set(lane, q, k);
        }
      }
    }
    return mask;
  }

  // Any plan at all: rows thrown onto ranks, in stages or rings.
  Plan MakePlan(const Problem& problem) {
    return Chance(0.5) ? ExchangePlan(problem) : RingPlan(problem);
  }

 private:
  Plan ExchangePlan(const Problem& problem) {
    const int64_t stages = Between(1, 4), q_blocks = problem.grid.QBlocks();
    std::vector<RowRuns> runs;
    for (int64_t lane = 0; lane < problem.lanes.Count(); ++lane) {
      std::vector<int32_t> stage_of(static_cast<size_t>(problem.ranks));
      for (int32_t& stage : stage_of) stage = static_cast<int32_t>(Between(0, stages - 1));
      RowRuns lane_runs;
      for (int64_t end = 0; end < q_blocks;) {
        end = Chance(0.5) ? q_blocks : Between(end + 1, q_blocks);
        const int32_t rank = static_cast<int32_t>(Between(0, problem.ranks - 1));
        lane_runs.push_back({.end = static_cast<int32_t>(end),
                             .rank = rank,
                             .stage = stage_of[static_cast<size_t>(rank)]});
      }
      runs.push_back(lane_runs);
    }
    return MakeExchangePlan(problem, {.name = "random", .ulysses = 0, .ring = 0, .parameters = {}},
                            runs, Chance(0.7));
  }

  Plan RingPlan(const Problem& problem) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= problem.ranks; ++d) {
      if (problem.ranks % d == 0) divisors.push_back(d);
    }
    const int64_t ulysses = divisors[static_cast<size_t>(Between(0, std::ssize(divisors) - 1))],
                  ring = problem.ranks / ulysses;
    std::vector<UlyssesGroup> groups(static_cast<size_t>(ulysses));
    std::vector<std::vector<int32_t>> lanes(groups.size());
    for (int32_t lane = 0; lane < problem.lanes.Count(); ++lane)
      lanes[static_cast<size_t>(Between(0, ulysses - 1))].push_back(lane);
    std::vector<std::vector<int32_t>> owned;  // the groups look into it
    owned.reserve(2 * groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      UlyssesGroup& group = groups[g];
      std::shuffle(lanes[g].begin(), lanes[g].end(), engine_);
      group.lanes = lanes[g];
      const bool contiguous = Chance(0.3);
      auto owners = [&](int64_t blocks) {
        if (contiguous) return EvenOwners(blocks, ring);
        std::vector<int32_t> owner(static_cast<size_t>(blocks));
        for (int32_t& o : owner) o = static_cast<int32_t>(Between(0, ring - 1));
        return owner;
      };
      group.q_owner = owned.emplace_back(owners(problem.grid.QBlocks()));
      group.kv_owner = owned.emplace_back(owners(problem.grid.KvBlocks()));
    }
    return MakeRingPlan(problem,
                        {.name = "random",
                         .ulysses = static_cast<int32_t>(ulysses),
                         .ring = static_cast<int32_t>(ring),
                         .parameters = {}},
                        groups, Chance(0.5));
  }

  std::mt19937_64 engine_;
  int64_t size_;
};

// Runs `property(RandomCase)` over seeds and growing sizes.
template <typename Property>
bool CheckCases(const char* name, Property&& property) {
  return rc::check(name, [&] {
    const uint64_t seed = *rc::gen::noShrink(rc::gen::arbitrary<uint64_t>());
    const int64_t size = *rc::gen::resize(100, rc::gen::inRange<int64_t>(0, 101));
    RandomCase random(seed, size);
    property(random);
  });
}

}  // namespace equitile::testing
