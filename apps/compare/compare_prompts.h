// `equitile compare --prompts`: two ways to generate, on the same prompts.
#pragma once

#include <string>

namespace equitile {

struct ComparePrompts {
  std::string prompts;  // a file, as `generate --prompts` reads it
  std::string a, b;     // flags of generate
  bool json = false;
};

// Makes both videos of each prompt, a and b in turns so that noise of the machine meets both, and
// compares frames before they are encoded. Throws InputError that names the side before any work.
void RunComparePrompts(const ComparePrompts& options);

}  // namespace equitile
