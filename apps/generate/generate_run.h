// Runs a checked request of `equitile generate` on its ranks.
#pragma once

#include <string>

#include "apps/generate/generate_request.h"

namespace equitile {

// `command`: the command line without --resume, for the message that says how to go on. Throws
// InputError before any work where a checkpoint cannot be resumed, Error where the run fails or was
// interrupted.
void RunGenerate(const GenerateRequest& request, const std::string& command);

}  // namespace equitile
