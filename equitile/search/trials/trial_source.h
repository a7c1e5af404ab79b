// The search behind the seam: a source of masks that tries all options on the calls that a table
// has room for, before it says what the layer attends to: all of it, what Sparse-vDiT's rule has
// just chosen, or a file's pattern.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "equitile/io/records/pattern_file.h"
#include "equitile/search/choice/loss.h"
#include "equitile/search/trials/trial_recorder.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

struct TrialSourceOptions {
  int64_t dense_steps = 0;   // that nothing is tried in
  int64_t first_prompt = 0;  // of the call's items, in the table
  int64_t passes = 1;
  // What is chosen goes on, for all prompts of the table at once: the paper's own trajectory.
  // Nothing: the dense one.
  std::optional<LossDials> walks_by;
  // Layers before the one that is tried are sparse already; not together with walks_by. Null:
  // dense.
  std::shared_ptr<const PatternFile> goes_on_with;
};

class TrialSource final : public MaskSource {
 public:
  // columns: [layers]. All must outlive it.
  TrialSource(const SourceContext& context, HeadTrials& trials,
              std::span<const ColumnMasses> columns, const TrialSourceOptions& options,
              ErrorTable& table);

  LaneMasks MaskFor(const SelfAttentionCall& call) override;

 private:
  LaneMasks Chosen(int64_t step, int64_t layer);
  LaneMasks Given(const SelfAttentionCall& call);
  std::span<const double> DensitiesOf(int64_t layer, int64_t head);

  SourceContext context_;
  HeadTrials& trials_;
  std::span<const ColumnMasses> columns_;
  TrialSourceOptions options_;
  ErrorTable& table_;
  TrialRecorder recorder_;
  LaneMasks dense_;
  std::map<std::pair<size_t, int32_t>, LaneMasks> given_;  // by range and layer
  std::vector<std::vector<double>> densities_;  // [layers * heads][options], as they are needed
};

}  // namespace equitile
