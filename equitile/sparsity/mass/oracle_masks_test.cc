#include "equitile/sparsity/mass/oracle_masks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::ExactMasses;
using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

LaneMasks Oracle(const LayerWorld& world, const OracleOptions& options, int32_t ranks) {
  const LayerCase& test = world.test();
  std::vector<LaneMasks> all;
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(2);
    Executor executor(comm, pool);
    SourceContext context = world.Context(comm, pool);
    context.executor = &executor;
    const LaneMasks shape(
        {.blocks = BlockMask(test.lanes, test.Grid()),
         .token_grid = test.token_grid,
         .orders = {},
         .tails = std::vector<Tail>(static_cast<size_t>(test.lanes.Count()), Tail::kMean)});
    OracleMasks source(context, shape, options);
    world.Call(comm, 0, 1, nullptr, [&](const SelfAttentionCall& call) {
      const LaneMasks masks = source.MaskFor(call);
      const std::lock_guard lock(mutex);
      all.push_back(masks);
    });
  });
  for (const LaneMasks& masks : all) EXPECT_EQ(masks, all.front());
  return all.front();
}

TEST(OracleMasks, HoldTheMostThatTheirDensityAllows) {
  LayerCase test{.key_scale = 3.0f};
  const LayerWorld world{test};
  const LaneMasks masks = Oracle(world, {.density = 0.4}, 1);
  const BlockMask& mask = masks.blocks();
  EXPECT_EQ(mask.Kept(),
            static_cast<int64_t>(std::ceil(0.4 * 6 * static_cast<double>(mask.QBlocks()) *
                                           static_cast<double>(mask.KvBlocks()))));
  EXPECT_EQ(masks.TailOf(2), Tail::kMean);
  double lightest = 1e9, heaviest = 0;  // of kept ones that are not their row's heaviest; of others
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      const std::vector<double> exact = ExactMasses(world, 1, lane, q);
      const auto best = std::max_element(exact.begin(), exact.end()) - exact.begin();
      EXPECT_TRUE(mask.Get(lane, q, best));
      const auto queries = static_cast<double>(mask.grid().QBlockTokens(q).size());
      for (int64_t k = 0; k < mask.KvBlocks(); ++k) {
        const double mass = queries * exact[static_cast<size_t>(k)];
        if (!mask.Get(lane, q, k)) heaviest = std::max(heaviest, mass);
        if (mask.Get(lane, q, k) && k != best) lightest = std::min(lightest, mass);
      }
    }
  }
  EXPECT_GE(lightest, heaviest * (1 - 1e-4));
}

TEST(OracleMasks, AreTheSameOnAnyRanks) {
  const LayerWorld world{LayerCase{}};
  const LaneMasks one = Oracle(world, {.density = 0.3}, 1);
  for (const int32_t ranks : {2, 3, 5, 8})
    EXPECT_EQ(Oracle(world, {.density = 0.3}, ranks), one) << ranks;
}

TEST(OracleMasks, PassesMayShareTheConditionalOnes) {
  const LayerWorld world{LayerCase{}};
  const BlockMask mask = Oracle(world, {.density = 0.3, .share_passes = true}, 2).blocks();
  for (int64_t head = 0; head < 3; ++head) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q)
      EXPECT_EQ(mask.KeptInRow(head, q), mask.KeptInRow(head + 3, q));
  }
  EXPECT_NEAR(mask.Density(), 0.3, 0.01);
}

TEST(OracleMasks, KeepARowsHeaviestAndFirstOfEqualOnes) {
  // Two lanes, three rows of 16, 16 and 8 queries, three columns.
  const BlockGrid grid{.q_tokens = 40, .kv_tokens = 40, .block_tokens = 16};
  const Lanes lanes{.batch = 1, .heads = 2};
  std::vector<float> even(18, 1.0f / 3);
  BlockMask mask(lanes, grid);
  KeepHeaviest(even, 0, 2, mask);
  EXPECT_EQ(mask.Kept(), 6);
  for (int64_t row = 0; row < 6; ++row) EXPECT_TRUE(mask.Get(row / 3, row % 3, 0));
  // Rows with fewer queries come last, then the first of equal ones.
  BlockMask more(lanes, grid);
  KeepHeaviest(even, 8.0 / 18, 2, more);
  EXPECT_EQ(more.KeptInRow(0, 0), (std::vector<int32_t>{0, 1, 2}));
  BlockMask most(lanes, grid);
  KeepHeaviest(even, 15.0 / 18, 2, most);
  EXPECT_EQ(most.RowCount(1, 1), 3);
  EXPECT_EQ(most.RowCount(0, 2), 2);
  EXPECT_EQ(most.RowCount(1, 2), 1);
  BlockMask all(lanes, grid);
  KeepHeaviest(even, 1, 2, all);
  EXPECT_EQ(all.Density(), 1.0);
  std::vector<float> none(18, NAN);
  BlockMask some(lanes, grid);
  KeepHeaviest(none, 0.5, 2, some);
  EXPECT_EQ(some.Kept(), 9);
}

}  // namespace
}  // namespace equitile
