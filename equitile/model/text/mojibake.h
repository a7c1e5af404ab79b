// Repair of text that was UTF-8 and has been read as Latin-1 or Windows-1252 ("cafÃ©"), by the
// rules of ftfy 6.3 as far as those two encodings go. Apart from the rest of prompt clean-up
// because it guesses: it first judges whether text looks broken at all.
#pragma once

#include <string>
#include <string_view>

namespace equitile {

// Whether some neighbours in the text are such as broken text has and written text has not.
bool LooksBroken(std::u32string_view text);

// The text with what looks broken repaired, in as many layers as there are; else unchanged. C1
// controls become the characters of Windows-1252.
std::u32string RepairMojibake(std::u32string text);

// C1 controls as characters of Windows-1252.
std::u32string ReplaceC1Controls(std::u32string text);

}  // namespace equitile
