// Who made a pattern file, from what and with which dials: what its header says beside the choice.
#pragma once

#include "equitile/generate/request.h"
#include "equitile/io/records/pattern_file.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/search/choice/pattern_choice.h"
#include "equitile/search/search_options.h"

namespace equitile {

struct PatternOrigin {
  const GenerateRequest& request;
  const Recipe& agreed;
  const SearchOptions& options;
  const BlockGrid& grid;
  const Machine& machine;
};

void FillHeader(const PatternOrigin& origin, const PatternChoice& choice, PatternFile& file);

}  // namespace equitile
