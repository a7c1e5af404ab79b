#include "equitile/sparsity/mass_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace equitile {
namespace {

// Shares that people write have few digits; a millionth more or less of a block is no block.
int64_t BlocksOf(double share, int64_t blocks) {
  return std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(share * static_cast<double>(blocks) - 1e-6)), 0, blocks);
}

}  // namespace

void KeepByMass(std::span<const uint32_t> masses, const MassRule& rule, int64_t lane,
                int64_t q_block, BlockMask& mask) {
  const auto blocks = static_cast<int64_t>(masses.size());
  if (rule.mass >= 1) {
    for (int64_t block = 0; block < blocks; ++block) mask.Set(lane, q_block, block);
    return;
  }
  // Heaviest first, then the lowest index: both in one number.
  thread_local std::vector<uint64_t> keys;
  keys.clear();
  uint64_t total = 0;
  for (uint64_t i = 0; i < masses.size(); ++i) {
    keys.push_back(uint64_t{masses[i]} << 32 | (0xffffffffU - i));
    total += masses[i];
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  const int64_t least = BlocksOf(rule.min, blocks);
  const int64_t most = std::max(least, BlocksOf(rule.max, blocks));
  const auto wanted = static_cast<uint64_t>(std::ceil(rule.mass * static_cast<double>(total)));
  uint64_t held = 0;
  for (int64_t i = 0; i < most && (i < least || held < wanted); ++i) {
    const uint64_t key = keys[static_cast<size_t>(i)];
    mask.Set(lane, q_block, static_cast<int64_t>(0xffffffffU - (key & 0xffffffffU)));
    held += key >> 32;
  }
}

}  // namespace equitile
