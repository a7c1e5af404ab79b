#include "equitile/sparsity/attention_watch.h"

#include <fmt/format.h>

#include "equitile/io/records/mask_file.h"

namespace equitile {

std::filesystem::path CallFileName(int64_t step, int64_t layer) {
  return fmt::format("step-{:04}-layer-{:03}.npy", step, layer);
}

AttentionWatch::AttentionWatch(Executor& executor, const SourceContext& context,
                               WatchOptions options)
    : options_(std::move(options)),
      token_grid_(context.token_grid),
      comm_(executor.comm()),
      probe_(executor, context.head_dim) {
  if (options_.sampled_q_blocks > 0)
    meter_.emplace(executor, context.head_dim, options_.sampled_q_blocks);
}

void AttentionWatch::WriteMasses(const SelfAttentionCall& call, const LaneMasks& masks) {
  const LaneMasks all = AllBlocksLike(masks);
  const std::vector<float> masses = GatherMasses(comm_, all.blocks(), probe_.Run(call, all));
  if (comm_.rank() != 0) return;
  WriteMassFile(options_.masses / CallFileName(call.step, call.layer),
                MaskFileOf(all, token_grid_, call.step, call.layer), masses);
}

std::vector<double> AttentionWatch::See(const SelfAttentionCall& call, const LaneMasks& masks) {
  if (!options_.masks.empty() && comm_.rank() == 0) {
    WriteMaskFile(options_.masks / CallFileName(call.step, call.layer),
                  MaskFileOf(masks, token_grid_, call.step, call.layer));
  }
  if (!options_.masses.empty()) WriteMasses(call, masks);
  if (!meter_ || masks.blocks().Density() == 1.0) return {};
  return meter_->HeldBy(call, masks);
}

}  // namespace equitile
