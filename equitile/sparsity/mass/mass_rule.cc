#include "equitile/sparsity/mass/mass_rule.h"

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
  if (rule.mass >= 1) return mask.SetRange(lane, q_block, {0, blocks});
  // Heaviest first, then the lowest index: both in one number.
  thread_local std::vector<uint64_t> keys;
  keys.clear();
  uint64_t total = 0, held = 0;
  int64_t kept = 0;
  for (uint64_t i = 0; i < masses.size(); ++i) {
    total += masses[i];
    if (mask.Get(lane, q_block, static_cast<int64_t>(i))) {
      held += masses[i];
      ++kept;
    } else {
      keys.push_back(uint64_t{masses[i]} << 32 | (0xffffffffU - i));
    }
  }
  const int64_t least = BlocksOf(rule.min, blocks);
  const int64_t most = std::max(least, BlocksOf(rule.max, blocks));
  const auto wanted = static_cast<uint64_t>(std::ceil(rule.mass * static_cast<double>(total)));
  const auto enough = [&] { return kept >= most || (kept >= least && held >= wanted); };
  if (enough()) return;
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (uint64_t key : keys) {
    if (enough()) return;
    mask.Set(lane, q_block, static_cast<int64_t>(0xffffffffU - (key & 0xffffffffU)));
    held += key >> 32;
    ++kept;
  }
}

}  // namespace equitile
