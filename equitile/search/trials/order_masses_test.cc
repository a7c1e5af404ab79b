#include "equitile/search/trials/order_masses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "equitile/kernel/rows/pooling.h"
#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

OrderMasses MassesOn(int32_t ranks, const LayerWorld& world) {
  const LayerCase& test = world.test();
  OrderMasses result(test.layers, test.lanes.heads, test.Grid());
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    OrderMasses sums(test.layers, test.lanes.heads, test.Grid());
    OrderMassSource source(world.Context(comm, pool), 1, sums);
    std::vector<float> out(static_cast<size_t>(test.Tokens() * test.lanes.Count() * test.head_dim));
    for (int32_t step : {0, 1, 2, 5}) {  // the first is dense, the third not looked at
      world.Call(comm, step, 1, out.data(),
                 [&](const SelfAttentionCall& call) { source.MaskFor(call); });
    }
    if (comm.rank() == 0) result = sums;
  });
  return result;
}

TEST(OrderMasses, AreTheSumsOfSoftmaxOnAnyRanks) {
  const LayerCase test;
  const LayerWorld world(test);
  const OrderMasses one = MassesOn(1, world);
  const int64_t tokens = test.Tokens(), kv_blocks = test.Grid().KvBlocks();
  for (size_t order : {size_t{0}, size_t{3}}) {
    const std::vector<int32_t> token_at = TokenAtPosition(test.token_grid, kAxisOrders[order]);
    std::vector<double> want(static_cast<size_t>(kv_blocks * kv_blocks));
    for (int64_t item = 0; item < test.lanes.batch; ++item) {
      const int64_t lane = test.lanes.Lane(item, 2);
      for (int64_t q = 0; q < tokens; ++q) {
        std::vector<double> weights(static_cast<size_t>(tokens));
        double sum = 0;
        for (int64_t k = 0; k < tokens; ++k) {
          const float* a = world.Row(0, 1, lane, token_at[static_cast<size_t>(q)]);
          const float* b = world.Row(1, 1, lane, token_at[static_cast<size_t>(k)]);
          double dot = 0;
          for (int64_t i = 0; i < test.head_dim; ++i) dot += static_cast<double>(a[i]) * b[i];
          sum += weights[static_cast<size_t>(k)] =
              std::exp(dot / std::sqrt(static_cast<double>(test.head_dim)));
        }
        const int64_t block = q / test.block_tokens;
        const auto rows = static_cast<double>(test.Grid().QBlockTokens(block).size());
        for (int64_t k = 0; k < tokens; ++k) {
          want[static_cast<size_t>(block * kv_blocks + k / test.block_tokens)] +=
              2 * weights[static_cast<size_t>(k)] / sum / rows;  // two steps are looked at
        }
      }
    }
    const auto got = one.Of(1, 2, order);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(static_cast<double>(got[i]) / kWholeMass, want[i], 1e-5) << i;
    EXPECT_EQ(std::ranges::count(one.Of(0, 2, order), 0u), std::ssize(want));
  }
  for (int32_t ranks : {2, 3, 8}) {
    const OrderMasses other = MassesOn(ranks, world);
    for (size_t order = 0; order < kAxisOrders.size(); ++order)
      EXPECT_TRUE(std::ranges::equal(other.Of(1, 0, order), one.Of(1, 0, order))) << ranks;
  }
}

// A head whose attention is a diagonal in one order only gets that order and that diagonal; one
// whose blocks are all alike keeps its rows whole.
TEST(OrderMasses, MasksTakeTheBestOrderAndLeaveNoRowEmpty) {
  const TokenGrid grid{.frames = 4, .height = 8, .width = 8};
  const BlockGrid blocks{.q_tokens = 256, .kv_tokens = 256, .block_tokens = 32};  // 8 x 8
  OrderMasses sums(1, 2, blocks);
  for (size_t order = 0; order < kAxisOrders.size(); ++order) {
    for (int64_t q = 0; q < 8; ++q) {
      for (int64_t kv = 0; kv < 8; ++kv) {
        const auto at = static_cast<size_t>(q * 8 + kv);
        sums.Of(0, 0, order)[at] = order == 3 && q == kv ? 800 : 100;
        // Head 1: all weight in the first rows.
        sums.Of(0, 1, order)[at] = q == 0 ? 1000 : 1;
      }
    }
  }
  const LaneMasks masks = MasksByOrder(sums, 0, 2, grid, 0.125);
  ASSERT_EQ(masks.orders().size(), 2u);
  EXPECT_EQ(masks.orders()[0], TokenOrder::kHWF);
  for (int64_t q = 0; q < 8; ++q) {
    EXPECT_TRUE(masks.blocks().Get(0, q, q));
    EXPECT_EQ(masks.blocks().RowCount(0, q), 1);
    EXPECT_EQ(masks.blocks().RowCount(1, q), 1);
  }
  EXPECT_EQ(MasksByOrder(sums, 0, 2, grid, 0.25).blocks().RowCount(1, 0), 8);
  EXPECT_EQ(MasksByOrder(sums, 0, 2, grid, 1).blocks().Kept(), 128);
}

}  // namespace
}  // namespace equitile
