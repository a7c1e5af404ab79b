// Sparse VideoGen's masks in every step: per head the better of two bands, by a few sampled rows.
#pragma once

#include <vector>

#include "equitile/sparsity/published/svg_rule.h"
#include "equitile/sparsity/source/lane_rows.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

class SvgMasks final : public MaskSource {
 public:
  SvgMasks(const SourceContext& context, SvgOptions options);
  LaneMasks MaskFor(const SelfAttentionCall& call) override;

 private:
  struct Rows {
    std::vector<float> q, k, v;
  };
  uint64_t Choose(const Rows& rows, float scale);

  SourceContext context_;
  LaneRows rows_;
  BlockMask mask_;                // of one lane, whatever its order
  std::vector<int64_t> sampled_;  // tokens
  std::vector<Rows> lanes_;       // [slots of rows_]
  Rows sent_;                     // of lanes whose masks other ranks make
  SvgScratch scratch_;
};

}  // namespace equitile
