#include "equitile/pattern/lane_masks.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "equitile/pattern/mask_hash.h"

namespace equitile {
namespace {

constexpr Lanes kLanes{.batch = 1, .heads = 2};
constexpr TokenGrid kGrid{.frames = 2, .height = 4, .width = 12};
const BlockGrid kBlocks{.q_tokens = 96, .kv_tokens = 96, .block_tokens = 32};

BlockMask Diagonal() {
  BlockMask mask(kLanes, kBlocks);
  for (int64_t lane = 0; lane < 2; ++lane) {
    for (int64_t q = 0; q < 3; ++q) mask.Set(lane, q, q);
  }
  return mask;
}

LaneMasks Masks(std::vector<TokenOrder> orders, std::vector<Tail> tails) {
  return LaneMasks({.blocks = Diagonal(),
                    .token_grid = kGrid,
                    .orders = std::move(orders),
                    .tails = std::move(tails)});
}

TEST(LaneMasks, WhatChangesTheAnswerChangesTheHash) {
  const std::vector<LaneMasks> all = {
      Masks({}, {}),
      Masks({TokenOrder::kFHW, TokenOrder::kHWF}, {}),
      Masks({TokenOrder::kHWF, TokenOrder::kFHW}, {}),
      Masks({}, {Tail::kNone, Tail::kMean}),
      Masks({}, {Tail::kMean, Tail::kMean}),
      Masks({TokenOrder::kFHW, TokenOrder::kHWF}, {Tail::kMean, Tail::kMean}),
      LaneMasks(BlockMask(kLanes, kBlocks)),
  };
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = 0; b < all.size(); ++b) {
      EXPECT_EQ(all[a] == all[b], a == b) << a << " " << b;
      EXPECT_EQ(all[a].hash() == all[b].hash(), a == b) << a << " " << b;
    }
  }
  EXPECT_EQ(all[0].hash(), HashMask(Diagonal()));
}

TEST(LaneMasks, HasOneFormOfWhatIsNotThere) {
  const LaneMasks plain = Masks({TokenOrder::kFHW, TokenOrder::kFHW}, {Tail::kNone, Tail::kNone});
  EXPECT_EQ(plain, LaneMasks(Diagonal()));
  EXPECT_TRUE(plain.orders().empty() && plain.tails().empty());
  EXPECT_EQ(plain.token_grid(), TokenGrid());
  EXPECT_EQ(plain.TailOf(1), Tail::kNone);
}

TEST(LaneMasks, CopiesShareAndOtherBlocksKeepTheRest) {
  const LaneMasks masks = Masks({TokenOrder::kFHW, TokenOrder::kHWF}, {Tail::kNone, Tail::kMean});
  const LaneMasks copy = masks;
  EXPECT_EQ(&copy.blocks(), &masks.blocks());
  const LaneMasks other = masks.WithBlocks(BlockMask::Dense(kLanes, kBlocks));
  EXPECT_EQ(other.orders(), masks.orders());
  EXPECT_EQ(other.tails(), masks.tails());
  EXPECT_EQ(other.blocks().Density(), 1.0);
  EXPECT_NE(other, masks);
}

TEST(LaneMasks, OneOrderAndOneTailPerLane) {
  EXPECT_THROW(Masks({TokenOrder::kHWF}, {}), InputError);
  EXPECT_THROW(Masks({}, {Tail::kMean, Tail::kMean, Tail::kMean}), InputError);
}

}  // namespace
}  // namespace equitile
