#include "equitile/pattern/skipped_heads.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

// Two items of five heads: 0 keeps a block in one item only, 1 nothing, 2 nothing but a tail in one
// item, 3 nothing, 4 one block in both, the last one of the last row.
LaneMasks Some() {
  const TokenGrid grid{.frames = 3, .height = 5, .width = 5};
  LaneMasks::Parts parts{.blocks = BlockMask({.batch = 2, .heads = 5}, {75, 75, 16}),
                         .token_grid = grid,
                         .orders = {},
                         .tails = {}};
  parts.blocks.Set(5, 0, 3);
  for (int64_t lane : {4, 9}) parts.blocks.Set(lane, 4, 4);
  for (int64_t lane = 0; lane < 10; ++lane) {
    parts.orders.push_back(lane % 5 == 4 ? TokenOrder::kHWF : TokenOrder::kFHW);
    parts.tails.push_back(lane == 7 ? Tail::kMean : Tail::kNone);
  }
  return LaneMasks(std::move(parts));
}

TEST(SkippedHeads, KeepNothingInAnyItem) {
  EXPECT_EQ(SkippedHeads(Some()), (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(SkippedHeads(BlockMask::Dense({2, 3}, {75, 75, 16})).empty());
  EXPECT_EQ(SkippedHeads(BlockMask({2, 3}, {75, 75, 16})), (std::vector<int64_t>{0, 1, 2}));
}

TEST(SkippedHeads, TheOthersMoveUpWithWhatBelongsToThem) {
  const LaneMasks all = Some();
  const LaneMasks rest = WithoutHeads(all, SkippedHeads(all));
  const std::vector<int64_t> from = {0, 2, 4, 5, 7, 9};  // lanes
  ASSERT_EQ(rest.blocks().lanes(), (Lanes{.batch = 2, .heads = 3}));
  EXPECT_EQ(rest.token_grid(), all.token_grid());
  for (int64_t lane = 0; lane < 6; ++lane) {
    const int64_t was = from[static_cast<size_t>(lane)];
    for (int64_t q = 0; q < 5; ++q)
      EXPECT_EQ(rest.blocks().KeptInRow(lane, q), all.blocks().KeptInRow(was, q)) << lane;
    EXPECT_EQ(rest.orders()[static_cast<size_t>(lane)], all.orders()[static_cast<size_t>(was)]);
    EXPECT_EQ(rest.TailOf(lane), all.TailOf(was));
  }
  EXPECT_EQ(WithoutHeads(all, {}).hash(), all.hash());
  EXPECT_EQ(HeadsLeft(5, std::vector<int64_t>{0, 4}), (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace equitile
