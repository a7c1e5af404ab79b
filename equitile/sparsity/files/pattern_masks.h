// Masks of a pattern file: a mode per head, by the noise level of the step; alone, filled up to what
// the file says that the head needs, or chosen by error but for the heads that are skipped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "equitile/io/records/pattern_file.h"
#include "equitile/sparsity/error/error_masks.h"
#include "equitile/sparsity/mass/predict_masks.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

// The file's masses for `predict` (p) or `observe` (theta); heads without one take `otherwise`.
HeadMass PredictMassOf(std::shared_ptr<const PatternFile> file, double otherwise);
HeadMass ObserveMassOf(std::shared_ptr<const PatternFile> file, double otherwise);

// The file's weights of errors, which it has; nothing in a file that has none.
LayerWeight ErrorWeightOf(std::shared_ptr<const PatternFile> file);

// Of a layer at a noise level, for the video of the context, which may be of another grid.
LaneMasks PatternMasksAt(const PatternFile& file, const SourceContext& context, double sigma,
                         int64_t layer);

// How blocks are chosen while generating. By mass they come on top of the modes' blocks. By error
// all are chosen within the one budget and in the order that needs the fewest: modes would bind the
// budget to blocks and orders that the video at hand needs less (docs/design/0016). Either way a
// head that is skipped stays so: whoever knows that before the layer begins need not make its
// values.
struct FillUp {
  std::variant<ErrorOptions, PredictOptions> by;  // with the weights or masses of the file
  Tail tail = Tail::kNone;  // of what is still not kept; heads of mode `mean` have theirs anyway
};

class PatternMasks final : public MaskSource {
 public:
  // fill_up: nothing for the modes alone.
  PatternMasks(const SourceContext& context, std::shared_ptr<const PatternFile> file,
               std::optional<FillUp> fill_up);

  LaneMasks MaskFor(const SelfAttentionCall& call) override;
  std::vector<int64_t> SkippedHeads(const ComingLayer& layer) override;
  int64_t Bytes() const override;
  SourceState State() const override;
  void Restore(const SourceState& state) override { restored_ = state; }

 private:
  struct Part {  // of one layer in one range of noise
    LaneMasks modes;
    std::unique_ptr<MaskSource> filled;  // null: the modes alone
  };
  int64_t RangeOf(double sigma, int32_t layer) const;  // whose part serves
  Part& At(double sigma, int32_t layer);
  std::unique_ptr<MaskSource> Filled(const LaneMasks& modes) const;

  SourceContext context_;
  std::shared_ptr<const PatternFile> file_;
  std::optional<FillUp> fill_up_;
  std::shared_ptr<ErrorMaskMaker> maker_;  // null: nobody chooses by error
  std::map<std::pair<int64_t, int32_t>, Part> parts_;  // by range and layer
  SourceState restored_;
};

}  // namespace equitile
