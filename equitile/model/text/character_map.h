// SentencePiece's precompiled character map: a double array over byte strings, then the
// replacements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

// Blob: u32 bytes of the array, the array's u32 units, replacements that end in NUL; little-endian.
class CharacterMap {
 public:
  explicit CharacterMap(std::string_view blob);  // throws InputError

  // Grapheme clusters of fewer than six bytes are replaced whole, by the shortest prefix that the
  // map has (so a mark after a compatibility character is lost); else characters one by one.
  std::string Apply(std::u32string_view text) const;

 private:
  std::optional<std::string_view> ShortestMatch(std::string_view bytes) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace equitile
