#include "equitile/sparsity/published/sparge_masks.h"

#include <vector>

#include "equitile/sparsity/source/mask_makers.h"
#include "equitile/sparsity/source/masks_in_force.h"

namespace equitile {
namespace {

// Means of blocks from means of their strips, less `center` (empty: nothing).
std::vector<float> BlockMeansOf(const float* strips, const BlockGrid& grid, int64_t head_dim,
                                const std::vector<double>& center) {
  std::vector<float> means;
  for (int64_t block = 0; block < grid.KvBlocks(); ++block) {
    const Range tokens = grid.KvBlockTokens(block);
    for (int64_t i = 0; i < head_dim; ++i) {
      double sum = 0;
      for (int64_t first = tokens.begin; first < tokens.end; first += kStripTokens) {
        const int64_t count = std::min(kStripTokens, tokens.end - first);
        sum += static_cast<double>(strips[first / kStripTokens * head_dim + i]) *
               static_cast<double>(count);
      }
      const double mean = sum / static_cast<double>(tokens.size());
      means.push_back(
          static_cast<float>(mean - (center.empty() ? 0.0 : center[static_cast<size_t>(i)])));
    }
  }
  return means;
}

std::vector<double> MeanOfAll(const float* strips, const BlockGrid& grid, int64_t head_dim) {
  std::vector<double> mean(static_cast<size_t>(head_dim), 0.0);
  for (int64_t first = 0; first < grid.kv_tokens; first += kStripTokens) {
    const auto count = static_cast<double>(std::min(kStripTokens, grid.kv_tokens - first));
    for (int64_t i = 0; i < head_dim; ++i)
      mean[static_cast<size_t>(i)] +=
          static_cast<double>(strips[first / kStripTokens * head_dim + i]) * count;
  }
  for (double& value : mean) value /= static_cast<double>(grid.kv_tokens);
  return mean;
}

}  // namespace

SpargeMasks::SpargeMasks(const SourceContext& context, SpargeOptions options)
    : context_(context),
      options_(options),
      strips_(CheckedProblem({.ranks = context.comm->size(),
                              .lanes = context.lanes,
                              .grid = context.grid,
                              .token_grid = {},
                              .orders = {}}),
              JudgedLanes(context.lanes, /*share_passes=*/false, {}), context.head_dim,
              *context.comm, *context.pool) {}

LaneMasks SpargeMasks::MaskFor(const SelfAttentionCall& call) {
  strips_.Gather(call);
  BlockMask mask(context_.lanes, context_.grid);
  // With the published bound for top-k no block is unlike itself: similarities are not looked at.
  const std::vector<float> alike(static_cast<size_t>(context_.grid.KvBlocks()), 1.0f);
  context_.pool->ParallelFor(std::ssize(strips_.lanes()), [&](int64_t index, int) {
    const auto i = static_cast<size_t>(index);
    const StripMeans means = strips_.MeansOf(i);
    const std::vector<float> q = BlockMeansOf(means.q, context_.grid, context_.head_dim, {});
    const std::vector<float> k = BlockMeansOf(means.k, context_.grid, context_.head_dim,
                                              MeanOfAll(means.k, context_.grid, context_.head_dim));
    KeepBySparge({.head_dim = context_.head_dim,
                  .q_means = q,
                  .k_means = k,
                  .q_similarity = alike,
                  .k_similarity = alike},
                 options_, strips_.lanes()[i], mask);
  });
  GatherRows(*context_.comm, mask);
  return LaneMasks(std::move(mask));
}

}  // namespace equitile
