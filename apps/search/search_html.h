// `equitile search --report`: what was found, as one page that needs nothing but a browser.
#pragma once

#include <cstdint>
#include <string>

#include "equitile/search/pattern_search.h"

namespace equitile {

struct SearchPageFacts {
  std::string name;  // of the pattern file
  const GenerateRequest& request;
  const SearchOptions& options;
  const SearchOutcome& outcome;
  int32_t ranks = 8;  // that layers are planned for
};

std::string SearchPage(const SearchPageFacts& facts);

}  // namespace equitile
