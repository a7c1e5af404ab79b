// What prompts need of Unicode: UTF-8 in and out, normalization form C, grapheme clusters, spaces.
// Text is a std::u32string of code points between the two ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace equitile {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
std::optional<std::u32string> DecodeUtf8(std::string_view bytes);
// The same; `name` ("prompt") is what the InputError calls the text, with the byte where it breaks.
std::u32string DecodeUtf8OrThrow(std::string_view bytes, std::string_view name);

void AppendUtf8(char32_t code, std::string& out);
std::string EncodeUtf8(std::u32string_view text);

// Canonical composition (NFC).
std::u32string ComposeCanonically(std::u32string_view text);

// The first extended grapheme cluster's length in code points; 0 for empty text. Rule GB9c (Indic
// conjuncts) is left out: it needs three characters of three bytes, and only clusters of fewer than
// six bytes are asked about (character_map.h).
size_t FirstCluster(std::u32string_view text);

bool IsSpace(char32_t code);          // the property White_Space
bool IsStripSpace(char32_t code);     // and U+001C to U+001F: what Python's strip() takes away
bool IsWordCharacter(char32_t code);  // letters and digits of any script, '_'

// The halfwidth and fullwidth forms as ordinary ones; nothing for all others. Appends.
bool AppendOrdinaryWidth(char32_t code, std::u32string& out);

}  // namespace equitile
