// Prompts as the reference pipeline cleans them before tokenizing: ftfy's repairs, HTML references,
// spaces.
#pragma once

#include <string>
#include <string_view>

namespace equitile {

// As diffusers' prompt_clean with ftfy installed, except that broken encodings are repaired only
// where UTF-8 was read as Latin-1 or Windows-1252. Throws InputError where the prompt is not UTF-8.
std::string CleanPrompt(std::string_view prompt);

}  // namespace equitile
