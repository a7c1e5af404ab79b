// `equitile generate`, on ranks.
#pragma once

#include <string>

#include "apps/generate/generate_flags.h"

namespace equitile {

// `command`: what was typed, for the message of an interrupted run.
void RunGenerate(const GenerateFlags& flags, const GenerateRequest& request,
                 const std::string& command);

}  // namespace equitile
