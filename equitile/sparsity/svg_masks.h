// Sparse VideoGen's masks in every step: per head the better of two bands, by a few sampled rows.
#pragma once

#include <vector>

#include "equitile/plan/core/home_map.h"
#include "equitile/sparsity/mask_source.h"
#include "equitile/sparsity/source_context.h"
#include "equitile/sparsity/svg_rule.h"

namespace equitile {

class SvgMasks final : public MaskSource {
 public:
  SvgMasks(const SourceContext& context, SvgOptions options);
  LaneMasks MaskFor(const SelfAttentionCall& call) override;

 private:
  // The rows of a lane's tokens (of the sampled ones only, for queries) that are at home on `rank`.
  std::vector<int64_t> HomeTokens(int32_t rank, int64_t lane, bool sampled_only) const;
  std::vector<float> ReadHome(const RowProducer& rows, int64_t lane, bool sampled_only) const;
  // Rows of all homes, in the order of tokens; on the rank that makes the lane's mask, else empty.
  // Collective.
  std::vector<float> GatherRowsOf(const RowProducer& rows, int64_t lane, bool sampled_only) const;
  TokenOrder ChooseOrder(const SelfAttentionCall& call, int64_t lane) const;

  SourceContext context_;
  SvgOptions options_;
  HomeMap homes_;
  BlockMask mask_;                // of one lane, whatever its order
  std::vector<int64_t> sampled_;  // tokens
};

}  // namespace equitile
