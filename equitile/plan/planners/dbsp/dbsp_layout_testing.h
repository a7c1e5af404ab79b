// What every layout of dbsp and dbsp+ must be, checked bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/planners/dbsp/dbsp.h"

namespace equitile::testing {

inline BlockMask RandomMask(Lanes lanes, int64_t q_blocks, int64_t kv_blocks, double density,
                            uint64_t seed) {
  BlockMask mask(lanes, {q_blocks * 64, kv_blocks * 64, 64});
  uint64_t state = seed * 2 + 1;
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    for (int64_t i = 0; i < q_blocks; ++i) {
      for (int64_t j = 0; j < kv_blocks; ++j) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        if (static_cast<double>(state >> 11) * 0x1p-53 < density) mask.Set(lane, i, j);
      }
    }
  }
  return mask;
}

// Lanes, rows and columns of very different weight.
inline BlockMask UnevenMask(Lanes lanes, int64_t q_blocks, int64_t kv_blocks, uint64_t seed) {
  BlockMask mask = RandomMask(lanes, q_blocks, kv_blocks, 0.3, seed);
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    for (int64_t i = 0; i < q_blocks; ++i) {
      for (int64_t j = 0; j < kv_blocks; ++j) {
        if ((lane * 7 + i * 3) % 5 == 0 || j < kv_blocks / 6) mask.Set(lane, i, j, i * 2 > j);
      }
    }
  }
  return mask;
}

// The cells by their definition.
inline std::vector<int64_t> SlowCells(const BlockMask& mask, const DbspLayout& layout) {
  std::vector<int64_t> cells(static_cast<size_t>(layout.ulysses * layout.ring * layout.ring));
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    for (int32_t lane : layout.GroupLanes(u)) {
      for (int64_t i = 0; i < mask.QBlocks(); ++i) {
        mask.ForEachKept(lane, i, [&](int64_t j) {
          const int64_t r = layout.QOwner(u)[static_cast<size_t>(i)];
          const int64_t c = layout.KvOwner(u)[static_cast<size_t>(j)];
          ++cells[static_cast<size_t>((u * layout.ring + r) * layout.ring + c)];
        });
      }
    }
  }
  return cells;
}

inline void ExpectEvenSizes(std::span<const int32_t> owners, int64_t parts) {
  std::vector<int64_t> size(static_cast<size_t>(parts));
  for (int32_t owner : owners) {
    ASSERT_GE(owner, 0);
    ASSERT_LT(owner, parts);
    ++size[static_cast<size_t>(owner)];
  }
  const auto [least, most] = std::minmax_element(size.begin(), size.end());
  EXPECT_LE(*most - *least, 1);
}

inline void ExpectSoundLayout(const BlockMask& mask, const DbspLayout& layout) {
  std::vector<int32_t> lanes = layout.lane_perm;
  std::sort(lanes.begin(), lanes.end());
  ASSERT_EQ(static_cast<int64_t>(lanes.size()), mask.LaneCount());
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    ASSERT_EQ(lanes[lane], static_cast<int32_t>(lane));
  }
  ASSERT_EQ(static_cast<int64_t>(layout.group_begin.size()), layout.ulysses + 1);
  int64_t fewest = mask.LaneCount(), most = 0;
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    const auto size = static_cast<int64_t>(layout.GroupLanes(u).size());
    fewest = std::min(fewest, size);
    most = std::max(most, size);
    ASSERT_EQ(static_cast<int64_t>(layout.QOwner(u).size()), mask.QBlocks());
    ASSERT_EQ(static_cast<int64_t>(layout.KvOwner(u).size()), mask.KvBlocks());
    ExpectEvenSizes(layout.QOwner(u), layout.ring);
    ExpectEvenSizes(layout.KvOwner(u), layout.ring);
  }
  EXPECT_LE(most - fewest, 1);
  EXPECT_EQ(layout.cells, SlowCells(mask, layout));
}

}  // namespace equitile::testing
