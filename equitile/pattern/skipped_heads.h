// Heads that keep nothing at all: who knows of them before a layer begins need not compute what
// they would have looked at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/lane_masks.h"

namespace equitile {

// Ascending: heads without a block, and without a tail, in every batch item. Their output is 0.
std::vector<int64_t> SkippedHeads(const LaneMasks& masks);

// The same masks of all other heads, which move up. heads: ascending.
LaneMasks WithoutHeads(const LaneMasks& masks, std::span<const int64_t> heads);

// [heads - skipped]: the heads that are left.
std::vector<int64_t> HeadsLeft(int64_t heads, std::span<const int64_t> skipped);

}  // namespace equitile
