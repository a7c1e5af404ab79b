#include "equitile/sparsity/mass/mass_meter.h"

#include <gtest/gtest.h>

#include <mutex>

#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::ExactMasses;
using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

// About 0.4 of the blocks, some rows empty, one lane in another order, tails.
LaneMasks SomeMasks(const LayerCase& test) {
  BlockMask blocks(test.lanes, test.Grid());
  const Rng rng(11);
  uint64_t draw = 0;
  for (int64_t lane = 0; lane < blocks.LaneCount(); ++lane) {
    for (int64_t q = 0; q < blocks.QBlocks(); ++q) {
      for (int64_t k = 0; k < blocks.KvBlocks(); ++k) {
        if (rng.UniformAt(draw++) < 0.4f && (lane + q) % 5 != 0) blocks.Set(lane, q, k);
      }
    }
  }
  std::vector<TokenOrder> orders(static_cast<size_t>(test.lanes.Count()), TokenOrder::kFHW);
  orders[1] = TokenOrder::kHWF;
  return LaneMasks(
      {.blocks = std::move(blocks),
       .token_grid = test.token_grid,
       .orders = std::move(orders),
       .tails = std::vector<Tail>(static_cast<size_t>(test.lanes.Count()), Tail::kMean)});
}

std::vector<double> Held(const LayerWorld& world, const LaneMasks& masks, int64_t sample,
                         int32_t ranks) {
  std::vector<double> all;
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(2);
    Executor executor(comm, pool);
    MassMeter meter(executor, world.test().head_dim, sample);
    std::vector<double> mine;
    world.Call(comm, 3, 1, nullptr, [&](const SelfAttentionCall& call) {
      mine = meter.HeldBy(call, masks);
      EXPECT_EQ(meter.HeldBy(call, masks), mine);
    });
    const std::lock_guard lock(mutex);
    if (all.empty()) all = mine;
    EXPECT_EQ(all, mine) << "rank " << comm.rank();
  });
  return all;
}

TEST(MassMeter, MeasuresWhatTheKeptBlocksHold) {
  const LayerWorld world{LayerCase{}};
  const LaneMasks masks = SomeMasks(world.test());
  const BlockMask& blocks = masks.blocks();
  for (const int64_t sample : {int64_t{1}, int64_t{3}, blocks.QBlocks(), int64_t{1000}}) {
    const std::vector<double> held = Held(world, masks, sample, 1);
    ASSERT_EQ(std::ssize(held), blocks.LaneCount());
    for (int64_t lane = 0; lane < blocks.LaneCount(); ++lane) {
      double kept = 0, queries = 0;
      for (const int64_t q : SampledRows(lane, blocks.QBlocks(), sample)) {
        const TokenOrder order = masks.orders()[static_cast<size_t>(lane)];
        const std::vector<double> exact = ExactMasses(world, 1, lane, q, order);
        const auto count = static_cast<double>(blocks.grid().QBlockTokens(q).size());
        for (const int32_t k : blocks.KeptInRow(lane, q))
          kept += count * exact[static_cast<size_t>(k)];
        queries += count;
      }
      // f32 sums over 210 keys, and scores of about 10 in f32.
      EXPECT_NEAR(held[static_cast<size_t>(lane)], kept / queries, 2e-5)
          << "lane " << lane << ", sample " << sample;
    }
  }
}

TEST(MassMeter, SaysTheSameOnAnyRanks) {
  const LayerWorld world{LayerCase{}};
  const LaneMasks masks = SomeMasks(world.test());
  for (const int64_t sample : {2, 100}) {
    const std::vector<double> one = Held(world, masks, sample, 1);
    for (const int32_t ranks : {2, 3, 5, 8}) EXPECT_EQ(Held(world, masks, sample, ranks), one);
  }
}

TEST(MassMeter, SamplesDifferentRowsAndAlwaysTheSame) {
  for (const int64_t q_blocks : {1, 2, 7, 100}) {
    for (const int64_t count : {1, 2, 5, 100, 1000}) {
      const std::vector<int64_t> rows = SampledRows(3, q_blocks, count);
      EXPECT_EQ(std::ssize(rows), std::min(count, q_blocks));
      EXPECT_EQ(rows, SampledRows(3, q_blocks, count));
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_TRUE(rows[i] >= 0 && rows[i] < q_blocks);
        if (i > 0) EXPECT_LT(rows[i - 1], rows[i]);
      }
    }
  }
  EXPECT_NE(SampledRows(0, 1000, 4), SampledRows(1, 1000, 4));
}

}  // namespace
}  // namespace equitile
