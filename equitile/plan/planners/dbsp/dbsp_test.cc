#include "equitile/plan/planners/dbsp/dbsp.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/plan/planners/dbsp/dbsp_counts.h"
#include "equitile/plan/planners/dbsp/dbsp_layout_testing.h"
#include "equitile/plan/planners/dbsp/dbsp_vectors_testing.h"

namespace equitile {
namespace {

using namespace equitile::testing;  // NOLINT: the helpers of this room's tests

TEST(DbspVectors, EveryStoredPlanIsReproduced) {
  const auto plans = ReadStoredPlans();
  ASSERT_EQ(plans.size(), 321u);
  std::map<std::string, BlockMask> masks;
  for (const StoredPlan& stored : plans) {
    SCOPED_TRACE(
        fmt::format("{} {}x{} {}", stored.mask, stored.ulysses, stored.ring, stored.variant));
    auto [it, added] = masks.try_emplace(stored.mask);
    if (added) it->second = ReadVectorMask(stored.mask);
    const DbspLayout layout = MakeDbsp(it->second, stored.ulysses, stored.ring, stored.Options());
    EXPECT_EQ(layout.lane_perm, stored.head_perm);
    EXPECT_EQ(layout.q_owner, stored.q_owner);
    EXPECT_EQ(layout.kv_owner, stored.kv_owner);
    const DbspScore after = ScoreLayout(layout);
    EXPECT_EQ(after.total, stored.total);
    EXPECT_EQ(after.crit, stored.crit_after);
    EXPECT_EQ(after.crit_paper, stored.crit_paper_after);
    EXPECT_EQ(after.moved_q, static_cast<double>(stored.moved_q));
    EXPECT_EQ(after.moved_kv, static_cast<double>(stored.moved_kv));
    const DbspScore before = ScoreLayout(MakeStaticLayout(it->second, stored.ulysses, stored.ring));
    EXPECT_EQ(before.crit, stored.crit_before);
    EXPECT_EQ(before.crit_paper, stored.crit_paper_before);
    EXPECT_EQ(before.moved_q + before.moved_kv, 0);
  }
}

TEST(DbspCounts, ColumnsAgreeWithBits) {
  // 2100 rows: more than the 8 · 255 after which byte counters are flushed, and all of them full
  // where rows is even; 1, 7, 9: partial folds.
  for (int64_t rows : {1, 7, 8, 9, 64, 2100}) {
    for (int64_t columns : {1, 63, 64, 65, 200}) {
      const BlockMask mask =
          RandomMask({1, 1}, rows, columns, rows % 2 == 0 ? 1 : 0.7, static_cast<uint64_t>(rows));
      std::vector<int32_t> expected(static_cast<size_t>(columns), 5), counts = expected;
      ColumnCounter counter(mask.WordsPerRow());
      std::vector<int32_t> all(static_cast<size_t>(rows));
      std::iota(all.begin(), all.end(), 0);
      counter.AddRows(mask.Row(0, 0).data(), std::span(all).first(static_cast<size_t>(rows / 3)));
      counter.AddRows(mask.Row(0, 0).data(), std::span(all).subspan(static_cast<size_t>(rows / 3)));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) expected[static_cast<size_t>(j)] += mask.Get(0, i, j);
      }
      counter.Drain(counts);
      EXPECT_EQ(counts, expected);
      counter.Drain(counts);
      EXPECT_EQ(counts, expected) << "a drained counter starts from zero";
    }
  }
}

TEST(DbspCounts, LanesRowsAndSumsAgreeWithBits) {
  for (int64_t lanes : {1, 7, 8, 19}) {
    for (int64_t rows : {1, 33, 70}) {
      const BlockMask mask = RandomMask({1, lanes}, rows, 97, 0.4, static_cast<uint64_t>(lanes));
      std::vector<int64_t> lane(static_cast<size_t>(lanes)), row(static_cast<size_t>(rows));
      std::vector<uint16_t> sum(static_cast<size_t>(rows * 97));
      std::vector<int32_t> odd;
      for (int64_t h = 0; h < lanes; ++h) {
        if (h % 2 == 1) odd.push_back(static_cast<int32_t>(h));
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < 97; ++j) {
            if (!mask.Get(h, i, j)) continue;
            ++lane[static_cast<size_t>(h)];
            ++row[static_cast<size_t>(i)];
            if (h % 2 == 1) ++sum[static_cast<size_t>(i * 97 + j)];
          }
        }
      }
      EXPECT_EQ(CountLanes(mask), lane);
      EXPECT_EQ(CountRows(mask), row);
      EXPECT_EQ(SumLanes(mask, odd), sum);
    }
  }
}

RC_GTEST_PROP(DbspProperty, LayoutIsSoundForEverySize, ()) {
  const Lanes lanes{*rc::gen::inRange<int64_t>(1, 4), *rc::gen::inRange<int64_t>(1, 16)};
  const auto q_blocks = *rc::gen::inRange<int64_t>(1, 80),
             kv_blocks = *rc::gen::inRange<int64_t>(1, 140);
  const auto ulysses = *rc::gen::inRange<int64_t>(1, 20), ring = *rc::gen::inRange<int64_t>(1, 20);
  DbspOptions options;
  options.reward = *rc::gen::element(0.0, 0.5, 2.0, 10.0);
  options.blocks = *rc::gen::element(DbspBlocks::kBiasedGreedy, DbspBlocks::kSwap);
  options.head_order = *rc::gen::element(DbspHeadOrder::kAssignment, DbspHeadOrder::kWeight);
  options.balance =
      *rc::gen::element(DbspBalance::kHeads, DbspBalance::kBlocks, DbspBalance::kBoth);
  const double density = *rc::gen::element(0.0, 0.05, 0.5, 1.0);
  const BlockMask mask =
      RandomMask(lanes, q_blocks, kv_blocks, density, *rc::gen::arbitrary<uint32_t>());

  const DbspLayout layout = MakeDbsp(mask, ulysses, ring, options);
  ExpectSoundLayout(mask, layout);
  const DbspLayout again = MakeDbsp(mask, ulysses, ring, options);
  RC_ASSERT(layout.lane_perm == again.lane_perm);
  RC_ASSERT(layout.q_owner == again.q_owner);
  RC_ASSERT(layout.kv_owner == again.kv_owner);

  const DbspScore score = ScoreLayout(layout);
  RC_ASSERT(score.total == mask.Kept());
  RC_ASSERT(score.rho >= 1 - 1e-12);
  RC_ASSERT(score.crit_paper >= score.crit);
  if (options.balance == DbspBalance::kHeads) RC_ASSERT(score.moved_q + score.moved_kv == 0);
  if (options.balance == DbspBalance::kBlocks)
    RC_ASSERT(std::is_sorted(layout.lane_perm.begin(), layout.lane_perm.end()));
  const DbspLayout fixed = MakeStaticLayout(mask, ulysses, ring);
  ExpectSoundLayout(mask, fixed);
}

TEST(Dbsp, EmptyMaskHasRhoOne) {
  const BlockMask mask({1, 3}, {5 * 64, 7 * 64, 64});
  const DbspScore score = ScoreLayout(MakeDbsp(mask, 4, 9));
  EXPECT_EQ(score.total, 0);
  EXPECT_EQ(score.rho, 1);
  EXPECT_EQ(score.rho_paper, 1);
}

TEST(Dbsp, UnevenGroupsTakeTheLighterLanes) {
  // 5 lanes of weight 9, 4, 4, 1, 1 on 2 groups: the third lane of a group goes where the load is
  // lower.
  BlockMask mask({1, 5}, {9 * 64, 64, 64});
  const int64_t weight[] = {1, 4, 9, 4, 1};
  for (int64_t lane = 0; lane < 5; ++lane) {
    for (int64_t i = 0; i < weight[lane]; ++i) mask.Set(lane, i, 0);
  }
  const DbspLayout layout = MakeDbsp(mask, 2, 1);
  EXPECT_EQ(layout.lane_perm, (std::vector<int32_t>{2, 4, 1, 3, 0}));
  EXPECT_EQ(layout.group_begin, (std::vector<int32_t>{0, 2, 5}));
}

TEST(Dbsp, DegreesMustBePositive) {
  const BlockMask mask({1, 1}, {64, 64, 64});
  EXPECT_THROW(MakeDbsp(mask, 0, 1), InputError);
  EXPECT_THROW(MakeStaticLayout(mask, 1, -1), InputError);
}

}  // namespace
}  // namespace equitile
