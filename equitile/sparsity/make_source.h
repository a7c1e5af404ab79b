// From what was asked for to a source of masks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "equitile/io/records/pattern_file.h"
#include "equitile/sparsity/attention_spec.h"
#include "equitile/sparsity/files/file_masks.h"
#include "equitile/sparsity/source/source_context.h"
#include "equitile/sparsity/source/warm_up.h"

namespace equitile {

// What self-attention of a run keeps: the same for all its videos.
struct SparsityOptions {
  AttentionSpec attention;
  WarmUpOptions warm_up;
  bool share_passes = false;                   // masks of the conditional pass for all passes
  std::shared_ptr<const PatternFile> pattern;  // where the attention names a pattern file
  std::optional<MaskTable> masks;
  std::optional<double> cache_bound;  // steps are skipped (EasyCache); nothing: none

  // The blocks of what is computed for so many tokens: those of the files, where there are some.
  BlockGrid GridFor(int64_t tokens) const;
  // Counted from 0: the last step that is dense anyway, where masses are observed unless somebody
  // says where.
  int64_t ObservedStep() const;
  // Steps that are computed in any case, from the first on, dense and observed ones: skipping one
  // of them would leave nothing to go by. Masks of a run say which of its steps were dense.
  int64_t ComputedSteps() const;
};

// Throws InputError for what cannot work in such a run.
void CheckSparsity(const SparsityOptions& options, int64_t steps, int64_t layers);

// For one video.
std::unique_ptr<MaskSource> MakeMaskSource(const SparsityOptions& options,
                                           const SourceContext& context);

}  // namespace equitile
