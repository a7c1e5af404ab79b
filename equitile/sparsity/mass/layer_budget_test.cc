#include "equitile/sparsity/mass/layer_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "equitile/base/rng.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/kernel/rows/pooling.h"
#include "equitile/sparsity/source/masks_in_force.h"

namespace equitile {
namespace {

constexpr int64_t kHeads = 3, kRows = 4, kColumns = 5;

BlockMask Empty() {
  return BlockMask({.batch = 1, .heads = kHeads},
                   {.q_tokens = kRows * 16, .kv_tokens = kColumns * 16, .block_tokens = 16});
}

// [heads][rows][columns]; the first head attends everywhere evenly, the others to few places.
std::vector<uint32_t> SomeMasses(uint64_t seed) {
  const Rng rng(seed);
  std::vector<uint32_t> masses;
  for (int64_t i = 0; i < kHeads * kRows * kColumns; ++i) {
    const auto any = rng.BitsAt(static_cast<uint64_t>(i)) % kWholeMass;
    masses.push_back(i < kRows * kColumns ? kWholeMass / kColumns : any >> (any % 13));
  }
  return masses;
}

// Rows in turn on ranks.
BlockMask KeptBy(int32_t ranks, const std::vector<uint32_t>& masses, const BlockMask& before,
                 const std::function<void(const LayerBudget&, Communicator&, BlockMask&)>& keep) {
  BlockMask kept = Empty();
  RunRanks(ranks, [&](Communicator& comm) {
    BlockMask mask = Empty();
    LayerBudget budget;
    for (int64_t row = comm.rank(); row < kHeads * kRows; row += comm.size()) {
      const std::span<uint32_t> to = budget.Add(row / kRows, row % kRows, kColumns);
      std::copy_n(masses.begin() + row * kColumns, kColumns, to.begin());
      std::ranges::copy(before.Row(row / kRows, row % kRows),
                        mask.MutableRow(row / kRows, row % kRows).begin());
    }
    keep(budget, comm, mask);
    GatherRows(comm, mask);
    if (comm.rank() == 0) kept = mask;
  });
  return kept;
}

BlockMask KeptOn(int32_t ranks, const std::vector<uint32_t>& masses, const MassRule& rule,
                 const BlockMask& before) {
  return KeptBy(ranks, masses, before,
                [&](const LayerBudget& budget, Communicator& comm, BlockMask& mask) {
                  budget.Keep(comm, rule, mask);
                });
}

// Whether the block is the heaviest of its row, which is always kept; of equal ones the first.
bool LeadsItsRow(const std::vector<uint32_t>& masses, int64_t i) {
  const auto row = masses.begin() + i / kColumns * kColumns;
  return std::max_element(row, row + kColumns) == masses.begin() + i;
}

uint64_t Held(const BlockMask& mask, const std::vector<uint32_t>& masses, uint32_t from) {
  uint64_t held = 0;
  for (int64_t i = 0; i < std::ssize(masses); ++i) {
    const int64_t row = i / kColumns;
    const uint32_t mass = masses[static_cast<size_t>(i)];
    if (mass >= from && mask.Get(row / kRows, row % kRows, i % kColumns)) held += mass;
  }
  return held;
}

TEST(LayerBudget, KeepsTheHeaviestOfAllRowsUntilTheyHoldTheShare) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<uint32_t> masses = SomeMasses(seed);
    const uint64_t total = std::accumulate(masses.begin(), masses.end(), uint64_t{0});
    for (const double share : {0.0, 0.3, 0.8, 0.999}) {
      const BlockMask mask = KeptOn(1, masses, {.mass = share}, Empty());
      std::vector<uint32_t> sorted = masses;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      uint64_t held = 0;
      uint32_t bound = kWholeMass + 1;
      for (size_t i = 0;
           i < sorted.size() && static_cast<double>(held) < share * static_cast<double>(total);
           ++i) {
        held += sorted[i];
        bound = sorted[i];
      }
      for (int64_t i = 0; i < std::ssize(masses); ++i) {
        const int64_t row = i / kColumns;
        EXPECT_EQ(mask.Get(row / kRows, row % kRows, i % kColumns),
                  LeadsItsRow(masses, i) || masses[static_cast<size_t>(i)] >= bound)
            << "seed " << seed << ", share " << share << ", block " << i;
      }
    }
  }
}

TEST(LayerBudget, LeavesOutTheLightestThatFitAndNoMore) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<uint32_t> masses = SomeMasses(seed);
    const uint64_t total = std::accumulate(masses.begin(), masses.end(), uint64_t{0});
    for (const uint64_t left : {uint64_t{0}, total / 10, total / 2, 2 * total}) {
      const BlockMask mask = KeptBy(
          3, masses, Empty(), [&](const LayerBudget& budget, Communicator& comm, BlockMask& kept) {
            budget.KeepAllBut(comm, left, kept);
          });
      std::vector<uint32_t> sorted = masses;
      std::sort(sorted.begin(), sorted.end());
      uint64_t out = 0;
      uint32_t bound = kWholeMass + 1;
      for (const uint32_t mass : sorted) {
        out += mass;
        if (out <= left) continue;
        bound = mass;  // equal ones are kept together
        break;
      }
      for (int64_t i = 0; i < std::ssize(masses); ++i) {
        const int64_t row = i / kColumns;
        EXPECT_EQ(mask.Get(row / kRows, row % kRows, i % kColumns),
                  LeadsItsRow(masses, i) || masses[static_cast<size_t>(i)] >= std::max(bound, 1U))
            << "seed " << seed << ", left " << left << ", block " << i;
      }
    }
  }
}

TEST(LayerBudget, IsTheSameOnAnyRanks) {
  const std::vector<uint32_t> masses = SomeMasses(7);
  const BlockMask one = KeptOn(1, masses, {.mass = 0.7, .min = 0.3}, Empty());
  for (int32_t ranks : {2, 3, 5, 13})
    EXPECT_EQ(KeptOn(ranks, masses, {.mass = 0.7, .min = 0.3}, Empty()), one) << ranks;
}

TEST(LayerBudget, BlocksThatAreKeptAlreadyCount) {
  const std::vector<uint32_t> masses = SomeMasses(3);
  BlockMask before = Empty();
  for (int64_t row = 0; row < kRows; ++row) before.SetRange(0, row, {0, kColumns});
  const BlockMask mask = KeptOn(2, masses, {.mass = 0.5}, before);
  EXPECT_EQ(mask.Kept() - before.Kept(),
            KeptOn(1, masses, {.mass = 0.5}, before).Kept() - before.Kept());
  EXPECT_LE(mask.Kept(), KeptOn(1, masses, {.mass = 0.5}, Empty()).Kept() + before.Kept());
  const uint64_t total = std::accumulate(masses.begin(), masses.end(), uint64_t{0});
  EXPECT_GE(static_cast<double>(Held(mask, masses, 0)), 0.5 * static_cast<double>(total));
  // Enough is kept already: one block of each row is added, no more.
  const BlockMask least = KeptOn(1, masses, {.mass = 0.01}, before);
  EXPECT_EQ(least.Kept(), before.Kept() + (kHeads - 1) * kRows);
}

TEST(LayerBudget, AllAndEvenMasses) {
  const std::vector<uint32_t> masses = SomeMasses(1);
  EXPECT_EQ(KeptOn(3, masses, {.mass = 1}, Empty()).Density(), 1);
  // Equal ones go together: half of nothing but equal blocks is all of them.
  const std::vector<uint32_t> even(kHeads * kRows * kColumns, kWholeMass / kColumns);
  EXPECT_EQ(KeptOn(2, even, {.mass = 0.5}, Empty()).Density(), 1);
  const std::vector<uint32_t> none(kHeads * kRows * kColumns, 0);
  EXPECT_EQ(KeptOn(2, none, {.mass = 0.5}, Empty()).Kept(), kHeads * kRows);
}

}  // namespace
}  // namespace equitile
