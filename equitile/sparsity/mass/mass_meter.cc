#include "equitile/sparsity/mass/mass_meter.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/base/sample.h"

namespace equitile {
namespace {

// Shares of rows are added as integers, so that it does not matter who adds them. With at most 2^31
// tokens in a lane a sum stays below 2^63.
constexpr double kWholeShare = 0x1p32;

constexpr uint64_t kSeed = 0x6d617373;  // any, but always the same

LaneMasks SampleLike(const LaneMasks& masks, int64_t count) {
  const BlockMask& blocks = masks.blocks();
  BlockMask sample(blocks.lanes(), blocks.grid());
  for (int64_t lane = 0; lane < sample.LaneCount(); ++lane) {
    for (const int64_t q_block : SampledRows(lane, sample.QBlocks(), count))
      sample.SetRange(lane, q_block, {0, sample.KvBlocks()});
  }
  return LaneMasks({.blocks = std::move(sample),
                    .token_grid = masks.token_grid(),
                    .orders = masks.orders(),
                    .tails = {}});
}

bool IsLike(const LaneMasks& a, const LaneMasks& b) {
  return a.blocks().lanes() == b.blocks().lanes() && a.blocks().grid() == b.blocks().grid() &&
         a.orders() == b.orders() && a.token_grid() == b.token_grid();
}

double HeldShare(const RowMasses& row, const BlockMask& mask) {
  double held = 0, all = 0;
  for (size_t j = 0; j < row.masses.size(); ++j) {
    all += double{row.masses[j]};
    if (mask.Get(row.lane, row.q_block, static_cast<int64_t>(j))) held += double{row.masses[j]};
  }
  return all > 0 ? held / all : 0;
}

}  // namespace

std::vector<int64_t> SampledRows(int64_t lane, int64_t q_blocks, int64_t count) {
  return DrawSample(q_blocks, count, Rng(kSeed, static_cast<uint32_t>(lane)));
}

std::vector<double> MassMeter::HeldBy(const SelfAttentionCall& call, const LaneMasks& masks) {
  const BlockMask& blocks = masks.blocks();
  if (!IsLike(sample_, masks)) sample_ = SampleLike(masks, q_blocks_);
  std::vector<uint64_t> held(static_cast<size_t>(blocks.LaneCount()), 0);
  for (const RowMasses& row : probe_.Run(call, sample_)) {
    if (row.masses.empty()) continue;  // not sampled
    const auto queries = static_cast<uint64_t>(blocks.grid().QBlockTokens(row.q_block).size());
    held[static_cast<size_t>(row.lane)] +=
        queries * static_cast<uint64_t>(std::llround(HeldShare(row, blocks) * kWholeShare));
  }
  if (comm_.size() > 1) comm_.AllReduce(std::span(held), Reduce::kSum);
  std::vector<double> shares;
  for (int64_t lane = 0; lane < blocks.LaneCount(); ++lane) {
    int64_t queries = 0;
    for (const int64_t q_block : SampledRows(lane, blocks.QBlocks(), q_blocks_))
      queries += blocks.grid().QBlockTokens(q_block).size();
    shares.push_back(static_cast<double>(held[static_cast<size_t>(lane)]) /
                     (kWholeShare * static_cast<double>(queries)));
  }
  return shares;
}

}  // namespace equitile
