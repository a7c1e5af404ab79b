// The two ways of the db-SP reference to split weighted items into parts of equal count. They know
// nothing of masks: lanes, query blocks and key blocks all go through them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace equitile {

struct Partition {
  std::vector<int32_t> owner;  // [items]
  std::vector<int32_t> order;  // [items] in the order of assignment: descending weight, of equal
                               // weights the lower index first
};

// Items by descending weight, each to the open part with the least load − (home of the item?
// reward·weight : 0); ties to the lowest part. Part sizes differ by at most one: a part is open
// below floor(items / parts), and at it as long as fewer than items mod parts of them went above.
// `home` is empty (no part is favoured) or [items].
Partition BiasedGreedy(std::span<const int64_t> weights, int64_t parts,
                       std::span<const int32_t> home, double reward);

// Starts from `home` and exchanges one of the five heaviest items of the most loaded part with one
// of the five lightest of the least loaded part while that brings the two loads closer, at most 100
// times. Both constants are the reference's.
std::vector<int32_t> SwapPartition(std::span<const int64_t> weights, int64_t parts,
                                   std::span<const int32_t> home);

}  // namespace equitile
