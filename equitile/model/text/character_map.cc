#include "equitile/model/text/character_map.h"

#include "equitile/base/error.h"
#include "equitile/model/text/unicode.h"

namespace equitile {
namespace {

constexpr size_t kLongestCluster = 5;  // bytes

uint32_t Word(std::string_view bytes) {
  uint32_t word = 0;
  for (size_t i = 4; i-- > 0;) word = word << 8 | static_cast<uint8_t>(bytes[i]);
  return word;
}

// Fields of a unit of the double array.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

CharacterMap::CharacterMap(std::string_view blob) {
  const size_t array_bytes = blob.size() < 4 ? 0 : Word(blob);
  if (array_bytes < 4 || array_bytes % 4 != 0 || array_bytes > blob.size() - 4) {
    throw InputError("[model] character map of the tokenizer: {} bytes do not hold an array of {}",
                     blob.size(), array_bytes);
  }
  units_.resize(array_bytes / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = Word(blob.substr(4 + 4 * i));
  replacements_ = blob.substr(4 + array_bytes);
  if (!DecodeUtf8(replacements_)) {
    throw InputError("[model] character map of the tokenizer: replacements are not valid UTF-8");
  }
}

std::optional<std::string_view> CharacterMap::ShortestMatch(std::string_view bytes) const {
  size_t at = Offset(units_[0]);
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || Label(units_[at]) != byte) return std::nullopt;
    const uint32_t unit = units_[at];
    at ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (at >= units_.size()) return std::nullopt;
    const size_t first = units_[at] & 0x7FFFFFFFu;
    // Within the replacements, at the start of a character.
    if (first >= replacements_.size() || (replacements_[first] & 0xC0) == 0x80) return std::nullopt;
    const std::string_view rest = std::string_view(replacements_).substr(first);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::string CharacterMap::Apply(std::u32string_view text) const {
  std::string out;
  while (!text.empty()) {
    const std::u32string_view cluster = text.substr(0, FirstCluster(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() <= kLongestCluster) {
      const std::string bytes = EncodeUtf8(cluster);
      const auto match = bytes.size() <= kLongestCluster ? ShortestMatch(bytes) : std::nullopt;
      if (match) {
        out += *match;
        continue;
      }
    }
    for (const char32_t code : cluster) {
      std::string character;
      AppendUtf8(code, character);
      out += ShortestMatch(character).value_or(character);
    }
  }
  return out;
}

}  // namespace equitile
