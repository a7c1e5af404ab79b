#include "equitile/pattern/block_mask.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>
#include <tuple>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Size {
  Lanes lanes;
  BlockGrid grid;
};

// Rows of less than a word, exactly one, one more, and two; a ragged tail or none.
std::vector<Size> Sizes() {
  std::vector<Size> sizes;
  for (int64_t kv_blocks : {1, 63, 64, 65, 127, 128}) {
    sizes.push_back({{1, 1}, {.q_tokens = 1, .kv_tokens = kv_blocks * 16, .block_tokens = 16}});
    sizes.push_back(
        {{2, 3}, {.q_tokens = 33, .kv_tokens = kv_blocks * 16 - 15, .block_tokens = 16}});
  }
  return sizes;
}

void CheckUnusedBitsAreZero(const BlockMask& mask) {
  const int64_t used = mask.KvBlocks() - (mask.WordsPerRow() - 1) * 64;
  if (used == 64) return;
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      EXPECT_EQ(mask.Row(lane, q).back() >> used, 0u);
    }
  }
}

TEST(BlockMask, EmptyAndDense) {
  for (const Size& size : Sizes()) {
    const BlockMask empty(size.lanes, size.grid);
    EXPECT_EQ(empty.Kept(), 0);
    EXPECT_EQ(empty.Density(), 0.0);
    const BlockMask dense = BlockMask::Dense(size.lanes, size.grid);
    EXPECT_EQ(dense.Kept(), dense.LaneCount() * dense.QBlocks() * dense.KvBlocks());
    EXPECT_EQ(dense.Density(), 1.0);
    CheckUnusedBitsAreZero(dense);
    EXPECT_EQ(dense.RowCount(dense.LaneCount() - 1, dense.QBlocks() - 1), dense.KvBlocks());
    EXPECT_NE(empty, dense);
  }
}

TEST(BlockMask, DenseEqualsAllSetOneByOne) {
  for (const Size& size : Sizes()) {
    BlockMask mask(size.lanes, size.grid);
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      for (int64_t q = 0; q < mask.QBlocks(); ++q) {
        for (int64_t kv = 0; kv < mask.KvBlocks(); ++kv) mask.Set(lane, q, kv);
      }
    }
    EXPECT_EQ(mask, BlockMask::Dense(size.lanes, size.grid));
  }
}

TEST(BlockMask, RangesEqualBlocksSetOneByOne) {
  for (int64_t blocks : {1, 63, 64, 65, 130}) {
    const BlockGrid grid = {16, blocks * 16, 16};
    for (int64_t begin = 0; begin <= blocks; ++begin) {
      for (int64_t end : {begin, begin + 1, begin + 63, begin + 64, blocks}) {
        if (end > blocks || end < begin) continue;
        BlockMask ranged({1, 2}, grid), single({1, 2}, grid);
        for (BlockMask* mask : {&ranged, &single}) mask->Set(1, 0, blocks - 1);  // stays
        ranged.SetRange(1, 0, {begin, end});
        for (int64_t kv = begin; kv < end; ++kv) single.Set(1, 0, kv);
        ASSERT_EQ(ranged, single) << blocks << ": " << begin << " to " << end;
      }
    }
  }
}

TEST(BlockMask, BehavesAsASetOfBlocks) {
  const bool right = rc::check("every count and list agrees with a std::set of blocks", [] {
    const Lanes lanes = {*rc::gen::inRange<int64_t>(1, 3), *rc::gen::inRange<int64_t>(1, 4)};
    const BlockGrid grid = {*rc::gen::inRange<int64_t>(1, 100), *rc::gen::inRange<int64_t>(1, 3000),
                            16 * *rc::gen::inRange<int64_t>(1, 5)};
    BlockMask mask(lanes, grid);
    std::set<std::tuple<int64_t, int64_t, int64_t>> kept;
    const int changes = *rc::gen::inRange(0, 200);
    for (int i = 0; i < changes; ++i) {
      const auto block = std::make_tuple(*rc::gen::inRange<int64_t>(0, mask.LaneCount()),
                                         *rc::gen::inRange<int64_t>(0, mask.QBlocks()),
                                         *rc::gen::inRange<int64_t>(0, mask.KvBlocks()));
      const bool keep = *rc::gen::inRange(0, 4) != 0;
      mask.Set(std::get<0>(block), std::get<1>(block), std::get<2>(block), keep);
      keep ? static_cast<void>(kept.insert(block)) : static_cast<void>(kept.erase(block));
    }
    RC_ASSERT(mask.Kept() == static_cast<int64_t>(kept.size()));
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      int64_t lane_kept = 0;
      for (int64_t q = 0; q < mask.QBlocks(); ++q) {
        std::vector<int32_t> expected;
        for (int64_t kv = 0; kv < mask.KvBlocks(); ++kv) {
          RC_ASSERT(mask.Get(lane, q, kv) == kept.contains({lane, q, kv}));
          if (kept.contains({lane, q, kv})) expected.push_back(static_cast<int32_t>(kv));
        }
        RC_ASSERT(mask.KeptInRow(lane, q) == expected);
        RC_ASSERT(mask.RowCount(lane, q) == static_cast<int64_t>(expected.size()));
        lane_kept += static_cast<int64_t>(expected.size());
      }
      RC_ASSERT(mask.LaneKept(lane) == lane_kept);
    }
    const double all = static_cast<double>(mask.LaneCount() * mask.QBlocks() * mask.KvBlocks());
    RC_ASSERT(mask.Density() == static_cast<double>(kept.size()) / all);
  });
  EXPECT_TRUE(right);
}

TEST(BlockMask, RefusesBadSizes) {
  const BlockGrid grid = {64, 64, 16};
  EXPECT_THROW(BlockMask({0, 1}, grid), InputError);
  EXPECT_THROW(BlockMask({1, 0}, grid), InputError);
  EXPECT_THROW(BlockMask({-1, -1}, grid), InputError);
  EXPECT_THROW(BlockMask({1, 1}, {64, 64, 0}), InputError);
  EXPECT_THROW(BlockMask({1, 1}, {64, 64, -16}), InputError);
  EXPECT_THROW(BlockMask({1, 1}, {-64, 64, 16}), InputError);
}

TEST(BlockMask, DefaultHasNoBlocks) {
  EXPECT_EQ(BlockMask().Kept(), 0);
  EXPECT_EQ(BlockMask().Density(), 0.0);
}

}  // namespace
}  // namespace equitile
