// Lanes over Ulysses groups for dbsp+: a lane costs nothing to place, so this only evens out the
// groups' weights, further than the greedy of dbsp does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace equitile {

// [groups][lanes of the group, ascending]. Greedy (as dbsp), then exchanges of one or two lanes
// between two groups while that brings their weights closer, then the same again from disturbed
// starts; the best is kept. Group sizes differ by at most one. Deterministic.
std::vector<std::vector<int32_t>> BalanceLanes(std::span<const int64_t> weights, int64_t groups);

}  // namespace equitile
