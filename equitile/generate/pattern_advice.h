// Whether a pattern is worth it for the video at hand, before it is made.
#pragma once

#include <string>
#include <string_view>

#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/sparsity/make_source.h"

namespace equitile {

// Why the options' pattern saves next to nothing of the steps of this video, in one line; "": it
// saves more. By the rates that the file was made with. Where blocks are chosen while the video is
// made, by the least that it must compute.
std::string WhyItSavesLittle(const SparsityOptions& options, const GenerationConfig& config,
                             const WanConfig& model, std::string_view name);

}  // namespace equitile
