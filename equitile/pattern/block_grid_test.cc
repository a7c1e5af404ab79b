#include "equitile/pattern/block_grid.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

TEST(Lanes, BatchIsSlowest) {
  const Lanes lanes = {3, 5};
  EXPECT_EQ(lanes.Count(), 15);
  EXPECT_EQ(lanes.Lane(0, 4), 4);
  EXPECT_EQ(lanes.Lane(1, 0), 5);
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    EXPECT_EQ(lanes.Lane(lanes.BatchOf(lane), lanes.HeadOf(lane)), lane);
    EXPECT_LT(lanes.HeadOf(lane), lanes.heads);
  }
}

TEST(BlockGrid, BlocksTileTheTokens) {
  for (int64_t block : {16, 48, 64, 256}) {
    for (int64_t q : {1, 15, 16, 17, 63, 64, 65, 997, 1024}) {
      for (int64_t kv : {1, 256, 257, 509}) {
        const BlockGrid grid = {q, kv, block};
        CheckBlockGrid(grid);
        int64_t next = 0;
        for (int64_t b = 0; b < grid.QBlocks(); ++b) {
          const Range tokens = grid.QBlockTokens(b);
          EXPECT_EQ(tokens.begin, next);
          EXPECT_FALSE(tokens.empty());
          if (b + 1 < grid.QBlocks()) {
            EXPECT_EQ(tokens.size(), block);
          }
          next = tokens.end;
        }
        EXPECT_EQ(next, q);
        EXPECT_EQ(grid.KvBlockTokens(grid.KvBlocks() - 1).end, kv);
        EXPECT_FALSE(grid.KvBlockTokens(grid.KvBlocks() - 1).empty());
      }
    }
  }
}

TEST(BlockGrid, RefusesBadSizes) {
  for (int64_t block : {-16, 0, 8, 15, 24, 63, 257, 272, 512}) {
    EXPECT_THROW(CheckBlockGrid({64, 64, block}), InputError) << block;
  }
  EXPECT_THROW(CheckBlockGrid({0, 64, 64}), InputError);
  EXPECT_THROW(CheckBlockGrid({64, 0, 64}), InputError);
  EXPECT_THROW(CheckBlockGrid({-1, 64, 64}), InputError);
  for (int64_t block = kMinBlockTokens; block <= kMaxBlockTokens; block += kStripTokens) {
    EXPECT_NO_THROW(CheckBlockGrid({1, 1, block}));
  }
}

}  // namespace
}  // namespace equitile
