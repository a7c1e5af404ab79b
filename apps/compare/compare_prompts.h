// `equitile compare --prompts`: ways to generate beside one, on the same prompts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace equitile {

struct ComparePrompts {
  std::string prompts;           // a file, as `generate --prompts` reads it
  std::string a;                 // flags of generate
  std::vector<std::string> b;    // the same for each side that is compared with a; at least one
  std::filesystem::path frames;  // a folder for all frames; empty: they are not kept
  std::filesystem::path html;    // a page, with videos beside it; empty: none
  bool json = false;
};

// Makes all videos of each prompt, once each, the sides in turns so that noise of the machine meets
// all of them, and compares frames before they are encoded. Throws InputError that names the side
// before any work.
void RunComparePrompts(const ComparePrompts& options);

}  // namespace equitile
