#include "equitile/sparsity/mass/layer_budget.h"

#include <algorithm>
#include <cmath>

#include "equitile/kernel/rows/pooling.h"

namespace equitile {
namespace {

// A mass is looked for by its upper bits, then by its lower ones: two small sums over ranks,
// however many blocks there are.
constexpr uint32_t kLowBits = 12, kLow = 1U << kLowBits;
constexpr uint32_t kHigh = (kWholeMass >> kLowBits) + 1;

// The last bin from which on, to the end, the bins hold `wanted` together with `held`; 0 if none
// do. held becomes what lies beyond the bin.
uint32_t LastHolding(std::span<const uint64_t> bins, uint64_t wanted, uint64_t& held) {
  for (size_t bin = bins.size(); bin-- > 1;) {
    if (held + bins[bin] >= wanted) return static_cast<uint32_t>(bin);
    held += bins[bin];
  }
  return 0;
}

}  // namespace

void LayerBudget::Clear() {
  rows_.clear();
  masses_.clear();
}

std::span<uint32_t> LayerBudget::Add(int64_t lane, int64_t q_block, int64_t kv_blocks) {
  const auto count = static_cast<size_t>(kv_blocks);
  rows_.push_back({lane, q_block, masses_.size(), count});
  masses_.resize(masses_.size() + count);
  return std::span(masses_).last(count);
}

std::span<uint32_t> LayerBudget::AddLane(int64_t lane, int64_t q_blocks, int64_t kv_blocks) {
  for (int64_t q_block = 0; q_block < q_blocks; ++q_block) Add(lane, q_block, kv_blocks);
  return std::span(masses_).last(static_cast<size_t>(q_blocks * kv_blocks));
}

uint32_t LayerBudget::Bound(Communicator& comm, FunctionRef<uint64_t(uint64_t sum)> wanted_of,
                            const BlockMask& mask) const {
  std::vector<uint64_t> high(kHigh + 2);  // then what is kept already, and all
  for (const Row& row : rows_) {
    const auto masses = MassesOf(row);
    for (size_t i = 0; i < masses.size(); ++i) {
      const bool kept = mask.Get(row.lane, row.q_block, static_cast<int64_t>(i));
      high[kept ? kHigh : std::min(masses[i], kWholeMass) >> kLowBits] += masses[i];
      high[kHigh + 1] += masses[i];
    }
  }
  comm.AllReduce(std::span(high), Reduce::kSum);
  const uint64_t wanted = wanted_of(high[kHigh + 1]);
  uint64_t held = high[kHigh];
  if (held >= wanted) return kWholeMass + 1;  // nothing more
  const uint32_t upper = LastHolding(std::span(high).first(kHigh), wanted, held);
  std::vector<uint64_t> low(kLow);
  for (const Row& row : rows_) {
    const auto masses = MassesOf(row);
    for (size_t i = 0; i < masses.size(); ++i) {
      if (std::min(masses[i], kWholeMass) >> kLowBits != upper) continue;
      if (!mask.Get(row.lane, row.q_block, static_cast<int64_t>(i)))
        low[masses[i] & (kLow - 1)] += masses[i];
    }
  }
  comm.AllReduce(std::span(low), Reduce::kSum);
  return upper << kLowBits | LastHolding(low, wanted, held);
}

void LayerBudget::KeepFrom(uint32_t bound, double min, BlockMask& mask) const {
  for (const Row& row : rows_) {
    const auto masses = MassesOf(row);
    for (size_t i = 0; i < masses.size(); ++i) {
      if (masses[i] >= bound) mask.Set(row.lane, row.q_block, static_cast<int64_t>(i));
    }
    const double one = 1.0 / static_cast<double>(masses.size());
    KeepByMass(masses, {.mass = 0, .min = std::max(min, one)}, row.lane, row.q_block, mask);
  }
}

void LayerBudget::Keep(Communicator& comm, const MassRule& rule, BlockMask& mask) const {
  const auto share = [&](uint64_t sum) {
    return static_cast<uint64_t>(std::ceil(rule.mass * static_cast<double>(sum)));
  };
  KeepFrom(rule.mass >= 1 ? 0 : std::max(Bound(comm, share, mask), 1U), rule.min, mask);
}

void LayerBudget::KeepAllBut(Communicator& comm, uint64_t left, BlockMask& mask) const {
  const auto rest = [&](uint64_t sum) { return sum - std::min(sum, left); };
  KeepFrom(std::max(Bound(comm, rest, mask), 1U), 0, mask);
}

}  // namespace equitile
