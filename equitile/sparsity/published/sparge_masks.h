// SpargeAttn's masks in every step, from means of blocks: the baseline that db-SP balances.
#pragma once

#include "equitile/sparsity/published/sparge_rule.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"
#include "equitile/sparsity/source/strip_pool.h"

namespace equitile {

class SpargeMasks final : public MaskSource {
 public:
  SpargeMasks(const SourceContext& context, SpargeOptions options);
  LaneMasks MaskFor(const SelfAttentionCall& call) override;

 private:
  SourceContext context_;
  SpargeOptions options_;
  StripPool strips_;
};

}  // namespace equitile
