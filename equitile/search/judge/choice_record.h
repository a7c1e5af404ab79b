// How far a search has come after its passes, for its checkpoint: what is there is not made again.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/search/choice/error_weights.h"
#include "equitile/search/judge/validation.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

// Videos of the tasks and files that the key is of.
struct VideosMade {
  uint64_t key = 0;
  std::vector<ValidationResult> results;  // [files]

  // Those of another key are forgotten.
  void Begin(uint64_t of_key);
};

// The numbers are the same on every rank, videos are rank 0's.
struct ChoiceRecord {
  uint64_t candidates_key = 0;
  std::vector<double> candidate_errors;  // [candidates that were tried]
  std::vector<LayerCurve> layers;        // [layers that were tried]
  double search_seconds = 0;             // until there was a file; 0: there is none
  VideosMade choosing, validation, other_size;

  void AddTo(SourceState& parts) const;
  void Restore(const SourceState& parts);
};

}  // namespace equitile
