// `equitile generate --dry-run`: what a request would cost, from its sizes alone.
#pragma once

#include "apps/generate/generate_flags.h"

namespace equitile {

// Prints; reads configs only, no weights.
void PrintDryRun(const GenerateFlags& flags, const GenerateRequest& request, int32_t ranks,
                 int threads_per_rank);

}  // namespace equitile
