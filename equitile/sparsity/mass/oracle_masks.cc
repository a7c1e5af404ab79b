#include "equitile/sparsity/mass/oracle_masks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/sparsity/mass/predict_masks.h"
#include "equitile/sparsity/source/not_finite.h"

namespace equitile {

void KeepHeaviest(std::span<const float> masses, double density, int64_t lanes, BlockMask& mask) {
  struct Block {
    double mass;
    int64_t index;  // in `masses`
  };
  const int64_t q_blocks = mask.QBlocks(), kv_blocks = mask.KvBlocks();
  const auto heavier = [](const Block& a, const Block& b) {
    return a.mass > b.mass || (a.mass == b.mass && a.index < b.index);
  };
  const auto keep = [&](const Block& block) {
    const int64_t row = block.index / kv_blocks;
    mask.Set(row / q_blocks, row % q_blocks, block.index % kv_blocks);
  };
  std::vector<Block> rest;
  for (int64_t row = 0; row < lanes * q_blocks; ++row) {
    const auto queries = static_cast<double>(mask.grid().QBlockTokens(row % q_blocks).size());
    const auto first = std::ssize(rest);
    for (int64_t index = row * kv_blocks; index < (row + 1) * kv_blocks; ++index) {
      const double mass = queries * double{masses[static_cast<size_t>(index)]};
      rest.push_back({mass >= 0 ? mass : 0, index});  // NaN would have no place in an order
    }
    std::iter_swap(std::min_element(rest.begin() + first, rest.end(), heavier), rest.end() - 1);
    keep(rest.back());
    rest.pop_back();
  }
  const int64_t blocks = lanes * q_blocks * kv_blocks;
  // Densities that people write have few digits.
  const auto wanted = static_cast<int64_t>(std::ceil(density * static_cast<double>(blocks) - 1e-6));
  const int64_t more = std::clamp<int64_t>(wanted - lanes * q_blocks, 0, std::ssize(rest));
  if (more < std::ssize(rest))
    std::nth_element(rest.begin(), rest.begin() + more, rest.end(), heavier);
  std::for_each(rest.begin(), rest.begin() + more, keep);
}

OracleMasks::OracleMasks(const SourceContext& context, LaneMasks shape, OracleOptions options)
    : context_(context),
      options_(options),
      shape_(std::move(shape)),
      all_(AllBlocksLike(shape_)),
      probe_(*context.executor, context.head_dim) {}

LaneMasks OracleMasks::MaskFor(const SelfAttentionCall& call) {
  BlockMask mask(context_.lanes, context_.grid);
  const std::vector<float> masses = GatherMasses(*context_.comm, mask, probe_.Run(call, all_));
  if (!std::ranges::all_of(masses, [](float mass) { return std::isfinite(mass); }))
    throw NotFinite();
  KeepHeaviest(masses, options_.density,
               options_.share_passes ? context_.lanes.heads : context_.lanes.Count(), mask);
  if (options_.share_passes) SharePasses(mask);
  return shape_.WithBlocks(std::move(mask));
}

}  // namespace equitile
