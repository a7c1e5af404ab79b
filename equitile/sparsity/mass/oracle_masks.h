// The best masks that a density allows, from the exact masses of the very step that they are for: a
// yardstick for all other sources, which must do without them. Costs a dense run of every layer.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/sparsity/mass/mass_probe.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

struct OracleOptions {
  double density = 0.25;      // of a layer, over all its lanes
  bool share_passes = false;  // the conditional pass's masks for all passes
};

class OracleMasks final : public MaskSource {
 public:
  // shape: lanes, grid and tails of the masks, in home order. The context has an executor.
  OracleMasks(const SourceContext& context, LaneMasks shape, OracleOptions options);
  LaneMasks MaskFor(const SelfAttentionCall& call) override;

 private:
  SourceContext context_;
  OracleOptions options_;
  LaneMasks shape_, all_;
  MassProbe probe_;
};

// Keeps the heaviest blocks of lanes [0, lanes) together, and in any case the heaviest one of each
// row, until `density` of their blocks are kept: one bound on the mass of a block for all lanes, so
// that a lane's own density follows from how much it needs. masses: [lanes, q blocks, kv blocks],
// means over a row's queries; weighed by how many these are. Of equal ones the first.
void KeepHeaviest(std::span<const float> masses, double density, int64_t lanes, BlockMask& mask);

}  // namespace equitile
