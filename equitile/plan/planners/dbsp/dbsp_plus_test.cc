#include "equitile/plan/planners/dbsp/dbsp_plus.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/plan/planners/dbsp/dbsp_blocks.h"
#include "equitile/plan/planners/dbsp/dbsp_lanes.h"
#include "equitile/plan/planners/dbsp/dbsp_layout_testing.h"
#include "equitile/plan/planners/dbsp/dbsp_partition.h"
#include "equitile/plan/planners/dbsp/dbsp_ring_state.h"
#include "equitile/plan/planners/dbsp/dbsp_vectors_testing.h"

namespace equitile {
namespace {

using namespace equitile::testing;  // NOLINT: the helpers of this room's tests

struct Degrees {
  int64_t ulysses, ring;
};
constexpr Degrees kEightRanks[] = {{8, 1}, {4, 2}, {2, 4}, {1, 8}};

double MovedShare(const BlockMask& mask, const DbspScore& score) {
  return (score.moved_q + score.moved_kv) / static_cast<double>(mask.QBlocks() + mask.KvBlocks());
}

RC_GTEST_PROP(DbspPlusProperty, SoundDeterministicAndNeverWorseThanStatic, ()) {
  const Lanes lanes{*rc::gen::inRange<int64_t>(1, 3), *rc::gen::inRange<int64_t>(1, 14)};
  const auto q_blocks = *rc::gen::inRange<int64_t>(1, 50);
  const auto kv_blocks = *rc::gen::inRange<int64_t>(1, 70);
  const auto ulysses = *rc::gen::inRange<int64_t>(1, 9), ring = *rc::gen::inRange<int64_t>(1, 24);
  DbspPlusOptions options;
  options.price = *rc::gen::element(-1.0, 0.0, 3.0);
  options.target_rho = *rc::gen::element(1.0, 1.01, 1.3);
  options.sweeps = *rc::gen::element<int64_t>(0, 1, 8);
  options.balance =
      *rc::gen::element(DbspBalance::kHeads, DbspBalance::kBlocks, DbspBalance::kBoth);
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  const double density = *rc::gen::element(-1.0, 0.0, 0.05, 0.5, 1.0);
  const BlockMask mask = density < 0 ? UnevenMask(lanes, q_blocks, kv_blocks, seed)
                                     : RandomMask(lanes, q_blocks, kv_blocks, density, seed);

  const DbspLayout layout = MakeDbspPlus(mask, ulysses, ring, options);
  ExpectSoundLayout(mask, layout);
  const DbspScore score = ScoreLayout(layout);
  RC_ASSERT(score.crit <= ScoreLayout(MakeStaticLayout(mask, ulysses, ring)).crit);
  if (options.balance == DbspBalance::kHeads) RC_ASSERT(score.moved_q + score.moved_kv == 0);
  if (options.balance == DbspBalance::kBlocks) {
    RC_ASSERT(std::is_sorted(layout.lane_perm.begin(), layout.lane_perm.end()));
  }
  const DbspLayout again = MakeDbspPlus(mask, ulysses, ring, options);
  RC_ASSERT(layout.lane_perm == again.lane_perm);
  RC_ASSERT(layout.q_owner == again.q_owner);
  RC_ASSERT(layout.kv_owner == again.kv_owner);
}

RC_GTEST_PROP(DbspPlusProperty, StateFollowsItsSwaps, ()) {
  const Lanes lanes{1, *rc::gen::inRange<int64_t>(1, 5)};
  const BlockMask mask =
      UnevenMask(lanes, *rc::gen::inRange<int64_t>(2, 30), *rc::gen::inRange<int64_t>(2, 30),
                 *rc::gen::arbitrary<uint32_t>());
  const auto ring = *rc::gen::inRange<int64_t>(2, 9);
  std::vector<int32_t> all(static_cast<size_t>(lanes.Count()));
  std::iota(all.begin(), all.end(), 0);
  RingState state(mask, all, ring);
  const auto swaps = *rc::gen::container<std::vector<std::pair<uint16_t, uint16_t>>>(
      rc::gen::arbitrary<std::pair<uint16_t, uint16_t>>());
  for (const auto& [a, b] : swaps) {
    const BlockSide& side = (a + b) % 2 == 0 ? state.query() : state.key();
    const int64_t slot_a = a % side.blocks, slot_b = b % side.blocks;
    if (side.label[static_cast<size_t>(slot_a)] == side.label[static_cast<size_t>(slot_b)])
      continue;
    state.Swap(side, slot_a, slot_b);
  }
  RingState fresh(mask, all, ring);
  fresh.Place(state.query().block, state.key().block);
  RC_ASSERT(state.Crit() == fresh.Crit());
  RC_ASSERT(state.Moved() == fresh.Moved());
  RC_ASSERT(state.query().count == fresh.query().count);
  RC_ASSERT(state.key().count == fresh.key().count);
  for (int64_t label = 0; label < ring; ++label) {
    for (int64_t s = 0; s < ring; ++s) {
      RC_ASSERT(state.Cell(state.query(), label, s) == fresh.Cell(fresh.query(), label, s));
      // A cell is what the slots of its label count, seen from either side.
      for (const BlockSide* side : {&state.query(), &state.key()}) {
        float sum = 0;
        for (int64_t slot = side->begin[static_cast<size_t>(label)];
             slot < side->begin[static_cast<size_t>(label + 1)]; ++slot) {
          sum += side->CountAt((label + s) % ring)[slot];
        }
        RC_ASSERT(static_cast<int64_t>(sum) == state.Cell(*side, label, s));
      }
    }
  }
}

RC_GTEST_PROP(DbspPlusProperty, BlockPlanIsWhatItSays, ()) {
  const BlockMask mask =
      UnevenMask({1, 3}, *rc::gen::inRange<int64_t>(1, 60), *rc::gen::inRange<int64_t>(1, 60),
                 *rc::gen::arbitrary<uint32_t>());
  DbspLayout layout = MakeStaticLayout(mask, 1, *rc::gen::inRange<int64_t>(1, 9));
  const int64_t goal = CeilDiv(mask.Kept(), layout.ring);
  const int64_t home_crit = ScoreLayout(layout).crit;
  const double price = *rc::gen::element(0.0, 1.0, 50.0);
  const BlockPlan plan = BalanceBlocks(mask, layout.GroupLanes(0), layout.ring,
                                       {.price = price, .goal = goal, .sweeps = 6, .searches = 1});
  layout.q_owner = plan.q_owner;
  layout.kv_owner = plan.kv_owner;
  CountCells(mask, layout);
  const DbspScore score = ScoreLayout(layout);
  RC_ASSERT(score.crit == plan.crit);
  RC_ASSERT(static_cast<int64_t>(score.moved_q + score.moved_kv) == plan.moved);
  RC_ASSERT(static_cast<double>(plan.crit) + price * static_cast<double>(plan.moved) <=
            static_cast<double>(home_crit));
}

RC_GTEST_PROP(DbspPlusProperty, LanesAreNotHeavierThanGreedy, ()) {
  const auto weights = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 1000)));
  const auto groups = *rc::gen::inRange<int64_t>(1, 9);
  const auto heaviest = [&](const std::vector<int32_t>& owner) {
    std::vector<int64_t> load(static_cast<size_t>(groups));
    for (size_t lane = 0; lane < owner.size(); ++lane) {
      load[static_cast<size_t>(owner[lane])] += weights[lane];
    }
    return *std::max_element(load.begin(), load.end());
  };
  std::vector<int32_t> owner(weights.size(), -1);
  const auto lanes = BalanceLanes(weights, groups);
  for (size_t u = 0; u < lanes.size(); ++u) {
    for (int32_t lane : lanes[u]) {
      RC_ASSERT(owner[static_cast<size_t>(lane)] == -1);
      owner[static_cast<size_t>(lane)] = static_cast<int32_t>(u);
    }
  }
  ExpectEvenSizes(owner, groups);
  RC_ASSERT(heaviest(owner) <= heaviest(BiasedGreedy(weights, groups, {}, 0).owner));
}

TEST(DbspPlus, ExchangesGainMostOfWhatGreedyLeaves) {
  // Eight groups of three that could all weigh 300.
  std::vector<int64_t> weights;
  for (int64_t u = 0; u < 8; ++u) {
    const int64_t a = 150 + 7 * u, b = 40 + 9 * u;
    weights.insert(weights.end(), {a, b, 300 - a - b});
  }
  const auto heaviest = [&](const std::vector<std::vector<int32_t>>& groups) {
    int64_t most = 0;
    for (const auto& group : groups) {
      int64_t load = 0;
      for (int32_t lane : group) load += weights[static_cast<size_t>(lane)];
      most = std::max(most, load);
    }
    return most;
  };
  std::vector<std::vector<int32_t>> greedy(8);
  const Partition partition = BiasedGreedy(weights, 8, {}, 0);
  for (int32_t lane : partition.order) {
    greedy[static_cast<size_t>(partition.owner[static_cast<size_t>(lane)])].push_back(lane);
  }
  EXPECT_LT(4 * (heaviest(BalanceLanes(weights, 8)) - 300), heaviest(greedy) - 300);
}

TEST(DbspPlus, BetterThanDbspOnAverageInRhoAndInMovedBlocks) {
  for (const auto& [ulysses, ring] : kEightRanks) {
    double rho = 0, moved = 0, dbsp_rho = 0, dbsp_moved = 0;
    for (const std::string& name : VectorMaskNames()) {
      const BlockMask mask = ReadVectorMask(name);
      const DbspScore dbsp = ScoreLayout(MakeDbsp(mask, ulysses, ring));
      const DbspScore plus = ScoreLayout(MakeDbspPlus(mask, ulysses, ring));
      rho += plus.rho;
      moved += MovedShare(mask, plus);
      dbsp_rho += dbsp.rho;
      dbsp_moved += MovedShare(mask, dbsp);
    }
    EXPECT_LT(rho, dbsp_rho) << ulysses << "x" << ring;
    if (ring > 1) EXPECT_LT(moved, 0.8 * dbsp_moved) << ulysses << "x" << ring;
  }
}

TEST(DbspPlus, TheRhoOfDbspNeedsLessThanHalfOfItsMoves) {
  for (const auto& [ulysses, ring] : kEightRanks) {
    if (ring == 1) continue;
    double moved = 0, dbsp_moved = 0, rho = 0, dbsp_rho = 0;
    for (const char* name : {"wan_h40_b64", "wan_h40_b128", "wan_h24_b128", "busy_h24_b64"}) {
      const BlockMask mask = ReadVectorMask(name);
      const DbspScore dbsp = ScoreLayout(MakeDbsp(mask, ulysses, ring));
      const DbspScore plus = ScoreLayout(
          MakeDbspPlus(mask, ulysses, ring, {.price = 1, .target_rho = std::max(1.0, dbsp.rho)}));
      rho += plus.rho;
      dbsp_rho += dbsp.rho;
      moved += MovedShare(mask, plus);
      dbsp_moved += MovedShare(mask, dbsp);
    }
    EXPECT_LT(rho, dbsp_rho + 0.01) << ulysses << "x" << ring;
    EXPECT_LT(moved, 0.5 * dbsp_moved) << ulysses << "x" << ring;
  }
}

TEST(DbspPlus, WhatIsBalancedStaysAtHome) {
  const BlockMask dense = BlockMask::Dense({2, 8}, {64 * 64, 64 * 64, 64});
  for (const auto& [ulysses, ring] : kEightRanks) {
    const DbspScore score = ScoreLayout(MakeDbspPlus(dense, ulysses, ring));
    EXPECT_EQ(score.rho, 1);
    EXPECT_EQ(score.moved_q + score.moved_kv, 0);
  }
}

TEST(DbspPlus, OptionsAreChecked) {
  const BlockMask mask({1, 2}, {128, 128, 64});
  EXPECT_THROW(MakeDbspPlus(mask, 2, 0), InputError);
  EXPECT_THROW(MakeDbspPlus(mask, 2, 1, {.target_rho = 0.9}), InputError);
  EXPECT_THROW(MakeDbspPlus(mask, 2, 1, {.sweeps = -1}), InputError);
}

}  // namespace
}  // namespace equitile
