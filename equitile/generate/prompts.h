// A file of prompts, one video per line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace equitile {

struct PromptLine {
  std::string prompt;            // as given
  std::optional<uint64_t> seed;  // its own
};

// Lines of "prompt" or "seed<TAB>prompt"; empty ones and those that begin with # are left out.
// Throws InputError with the number of the line.
std::vector<PromptLine> ReadPrompts(const std::filesystem::path& path);

}  // namespace equitile
