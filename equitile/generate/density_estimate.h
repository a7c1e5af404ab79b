// How much of its attention a run will compute, as far as that is known before it begins: for
// --dry-run.
#pragma once

#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/sparsity/make_source.h"

namespace equitile {

// Shares of all blocks, mean over steps and layers. Where masks depend on what the model computes
// they are a range: from the least that the source must keep to everything.
struct DensityEstimate {
  double low = 1, high = 1;
  double sparse_calls = 0;  // share of all calls of layers that may leave blocks out
  double skipped = 0;       // share of all heads that a layer does without, mean over all calls
  LaneMasks masks;          // of the last layer in the last step that is sparse, where known; dense

  bool IsRange() const { return low < high; }
};

// Steps that a cache may skip count as computed.
DensityEstimate EstimateDensity(const SparsityOptions& options, const GenerationConfig& config,
                                const WanConfig& model);

}  // namespace equitile
