// What a pattern search takes, foretold from its request: memory, and the time of the videos that
// follow its passes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "equitile/generate/request.h"
#include "equitile/search/search_options.h"

namespace equitile {

// Memory of one rank, beside the weights.
struct SearchBytes {
  int64_t activations = 0;  // of all prompts that are walked at once
  int64_t table = 0;        // of errors, and its copy in a checkpoint
  int64_t lanes = 0;        // that are tried at once
  int64_t Total() const { return activations + table + lanes; }
};
SearchBytes CountSearchBytes(const GenerateRequest& request, const SearchOptions& options,
                             int32_t ranks, int threads);

// Videos of so many tasks, dense and with so many pattern files, in dense steps of `unit`.
double VideoSteps(const GenerateRequest& videos, size_t tasks, int64_t files,
                  const GenerateRequest& unit);

}  // namespace equitile
