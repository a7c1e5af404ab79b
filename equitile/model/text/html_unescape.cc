#include "equitile/model/text/html_unescape.h"

#include <algorithm>
#include <iterator>

#include "equitile/model/text/html_entities.h"
#include "equitile/model/text/windows1252.h"

namespace equitile {
namespace {

using html_tables::Capital;
using html_tables::Entity;
using html_tables::kCapitals;
using html_tables::kEntities;

constexpr size_t kLongestName = 32;  // what a reference without ';' may be at most

bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }
bool IsHex(char32_t c) { return IsDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
bool IsAsciiLetter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool EndsName(char32_t c) {
  return c == '\t' || c == '\n' || c == '\f' || c == ' ' || c == '<' || c == '&' || c == '#' ||
         c == ';';
}

const Entity* FindEntity(std::u32string_view name) {
  std::string ascii;
  for (const char32_t c : name) {
    if (c >= 0x80) return nullptr;
    ascii += static_cast<char>(c);
  }
  const auto at =
      std::lower_bound(std::begin(kEntities), std::end(kEntities), ascii,
                       [](const Entity& e, std::string_view wanted) { return e.name < wanted; });
  return at != std::end(kEntities) && at->name == ascii ? at : nullptr;
}

void Append(const Entity& entity, std::u32string& out) {
  out += entity.first;
  if (entity.second != 0) out += entity.second;
}

void AppendNumber(uint32_t code, std::u32string& out) {
  if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    out += U'\uFFFD';
  } else if (code >= 0x80 && code < 0xA0) {
    out += FromWindows1252(static_cast<uint8_t>(code));
  } else if (code == '\r') {
    out += code;
  } else {
    const bool invalid = (code < 0x20 && !(code >= 0x9 && code <= 0xC && code != 0xB)) ||
                         code == 0x7F || (code >= 0xFDD0 && code < 0xFDF0) ||
                         (code & 0xFFFE) == 0xFFFE;
    if (!invalid) out += code;
  }
}

// Reads "#65;", "#x41" at the start of `text`: characters taken, 0 where it is no number.
size_t TakeNumber(std::u32string_view text, std::u32string& out) {
  const bool hex = text.size() > 1 && (text[1] | 0x20) == 'x';
  const size_t first = hex ? 2 : 1;
  size_t end = first;
  uint32_t code = 0;
  for (; end < text.size() && (hex ? IsHex(text[end]) : IsDigit(text[end])); ++end) {
    const uint32_t digit = IsDigit(text[end]) ? text[end] - '0' : (text[end] | 0x20) - 'a' + 10;
    code = std::min<uint32_t>(code * (hex ? 16 : 10) + digit, 0x110000);
  }
  if (end == first) return 0;
  AppendNumber(code, out);
  return end + (end < text.size() && text[end] == ';' ? 1 : 0);
}

// Reads a name: characters taken of `text`, 0 where it begins with none.
size_t TakeName(std::u32string_view text, std::u32string& out) {
  size_t end = 0;
  while (end < std::min(text.size(), kLongestName) && !EndsName(text[end])) ++end;
  if (end == 0) return 0;
  if (end < text.size() && text[end] == ';') ++end;
  for (size_t length = end; length > 1; --length) {
    if (const Entity* entity = FindEntity(text.substr(0, length))) {
      Append(*entity, out);
      return length;
    }
  }
  return 0;
}

// "EACUTE;" where only "eacute;" exists: its capitals. False where there is no such name.
bool AppendCapitals(std::u32string_view name, std::u32string& out) {
  std::u32string lower, unused;
  for (const char32_t c : name) {
    if (c >= 'a' && c <= 'z') return false;
    lower += c >= 'A' && c <= 'Z' ? c | 0x20 : c;
  }
  const Entity* entity = FindEntity(lower);
  if (entity == nullptr || TakeName(name, unused) != 0) return false;
  for (const char32_t c : {entity->first, entity->second}) {
    if (c == 0) break;
    const auto capital = std::lower_bound(
        std::begin(kCapitals), std::end(kCapitals), c,
        [](const Capital& entry, char32_t wanted) { return entry.lower < wanted; });
    if (capital == std::end(kCapitals) || capital->lower != c) {
      out += c;
      continue;
    }
    for (const char32_t upper : capital->upper) {
      if (upper != 0) out += upper;
    }
  }
  return true;
}

}  // namespace

std::u32string UnescapeHtml(std::u32string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    size_t taken = 0;
    if (text[at] == '&' && at + 1 < text.size()) {
      const std::u32string_view rest = text.substr(at + 1);
      taken = rest[0] == '#' ? TakeNumber(rest, out) : TakeName(rest, out);
    }
    if (taken == 0) {
      out += text[at++];
    } else {
      at += 1 + taken;
    }
  }
  return out;
}

std::u32string UnescapeHtmlCautiously(std::u32string_view text) {
  constexpr size_t kLongest = 24;
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const std::u32string_view rest = text.substr(at + 1);
    const size_t first = !rest.empty() && rest[0] == '#' ? 1 : 0;
    size_t end = first;
    while (end < rest.size() && end - first < kLongest &&
           (IsDigit(rest[end]) || IsAsciiLetter(rest[end]))) {
      ++end;
    }
    bool replaced = false;
    if (text[at] == '&' && end > first && end < rest.size() && rest[end] == ';') {
      const std::u32string_view reference = rest.substr(0, end + 1);
      if (first == 1) {
        std::u32string character;
        replaced = TakeNumber(reference, character) == reference.size() && character != U";";
        if (replaced) out += character;
      } else if (const Entity* entity = FindEntity(reference)) {
        Append(*entity, out);
        replaced = true;
      } else {
        replaced = AppendCapitals(reference, out);
      }
    }
    if (replaced) {
      at += end + 2;
    } else {
      out += text[at++];
    }
  }
  return out;
}

}  // namespace equitile
