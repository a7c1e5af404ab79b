// `predict` by mass: masks from means of strips of 16 queries and keys, the blocks that hold a
// given share of the predicted attention, of a row or of a layer. By error: error_masks.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "equitile/sparsity/mass/layer_budget.h"
#include "equitile/sparsity/mass/mass_rule.h"
#include "equitile/sparsity/source/masks_in_force.h"
#include "equitile/sparsity/source/source_context.h"
#include "equitile/sparsity/source/strip_pool.h"

namespace equitile {

struct PredictOptions {
  MassRule rule{.mass = 0.95, .min = 0.05};
  HeadMass mass_of_head;  // instead of rule.mass, a row's each; none: one for all
  // Blocks with a strip less like itself than this are kept, as keys for every query and as queries
  // with every key: its mean says little about its tokens. 0: none.
  double guard = 0;
  int64_t refresh = 1;           // computed steps for which a mask is kept
  bool share_passes = false;     // the conditional pass's masks for all passes
  std::vector<int64_t> skipped;  // heads, ascending, that nothing is predicted for
};

class PredictMasks final : public MaskSource {
 public:
  // shape: lanes, grid, orders and tails of the masks; blocks that it keeps are always kept.
  PredictMasks(const SourceContext& context, LaneMasks shape, PredictOptions options);

  LaneMasks MaskFor(const SelfAttentionCall& call) override;
  int64_t Bytes() const override { return masks_.Bytes() + layer_.Bytes(); }
  SourceState State() const override;
  void Restore(const SourceState& state) override { masks_.Restore(state); }

 private:
  LaneMasks Predict(const SelfAttentionCall& call);
  void Guard(size_t index, BlockMask& mask) const;  // the lane strips_.lanes()[index]

  SourceContext context_;
  PredictOptions options_;
  MasksInForce masks_;
  StripPool strips_;
  std::unique_ptr<StripPool> directions_;    // means of rows of length 1; null: nobody asks
  LayerBudget layer_;
  std::vector<std::vector<float>> scratch_;  // [threads]
  std::vector<std::vector<uint32_t>> row_;   // [threads][kv blocks]
};

// [strips] SpargeAttn's self-similarity |sum of x / |x||^2 / n^2 of the n tokens of a strip: 1
// where all point the same way. directions: [strips][head_dim] means of x / |x|.
std::vector<double> SelfSimilarities(const float* directions, int64_t strips, int64_t head_dim);

// Lanes of all passes get the rows of the first pass's lanes.
void SharePasses(BlockMask& mask);

}  // namespace equitile
