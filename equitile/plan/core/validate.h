// Is a Program right for a mask? Independent of how it was made: it looks only at transfers and
// tasks.
#pragma once

#include <optional>
#include <string>

#include "equitile/pattern/block_mask.h"
#include "equitile/plan/core/program.h"

namespace equitile {

// The first violation in words (which row, which rank, which stage), or nothing. Checked, in the
// order in which it runs: every transfer names ranks and blocks that exist; a ring rank passes on
// only what it holds; every row is computed by a rank that has its Q, and the K and V of the blocks
// it computes, by then; no kept block twice, none left out; all parts of a row on one rank; every
// row's O goes home once, from the rank that computed it, after its last part.
std::optional<std::string> Validate(const Program& program, const LaneMasks& masks);

}  // namespace equitile
