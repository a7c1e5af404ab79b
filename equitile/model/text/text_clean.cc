#include "equitile/model/text/text_clean.h"

#include "equitile/model/text/html_unescape.h"
#include "equitile/model/text/mojibake.h"
#include "equitile/model/text/unicode.h"

namespace equitile {
namespace {

// The letters of a ligature or digraph; empty: it is none.
std::u32string_view Ligature(char32_t c) {
  switch (c) {
    case 0x0132:
      return U"IJ";
    case 0x0133:
      return U"ij";
    case 0x0149:
      return U"\u02BCn";
    case 0x01C4:
      return U"D\u017D";
    case 0x01C5:
      return U"D\u017E";
    case 0x01C6:
      return U"d\u017E";
    case 0x01C7:
      return U"LJ";
    case 0x01C8:
      return U"Lj";
    case 0x01C9:
      return U"lj";
    case 0x01CA:
      return U"NJ";
    case 0x01CB:
      return U"Nj";
    case 0x01CC:
      return U"nj";
    case 0x01F1:
      return U"DZ";
    case 0x01F2:
      return U"Dz";
    case 0x01F3:
      return U"dz";
    case 0xFB00:
      return U"ff";
    case 0xFB01:
      return U"fi";
    case 0xFB02:
      return U"fl";
    case 0xFB03:
      return U"ffi";
    case 0xFB04:
      return U"ffl";
    case 0xFB05:
      return U"\u017Ft";
    case 0xFB06:
      return U"st";
    default:
      return {};
  }
}

bool IsUnwantedControl(char32_t c) {
  return c <= 0x08 || c == 0x0B || (c >= 0x0E && c < 0x20) || c == 0x7F ||
         (c >= 0x206A && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
}

// Ligatures, widths, quotes and line ends, character by character. A quote that a ligature leaves
// is straightened too.
std::u32string PlainCharacters(std::u32string_view text) {
  std::u32string wide;
  for (const char32_t c : text) {
    if (const std::u32string_view letters = Ligature(c); !letters.empty()) {
      wide += letters;
    } else if (c == 0x3000) {
      wide += U' ';
    } else if (!AppendOrdinaryWidth(c, wide)) {
      wide += c;
    }
  }
  std::u32string out;
  for (size_t i = 0; i < wide.size(); ++i) {
    const char32_t c = wide[i];
    if (c == 0x02BC || (c >= 0x2018 && c <= 0x201B)) {
      out += U'\'';
    } else if (c >= 0x201C && c <= 0x201F) {
      out += U'"';
    } else if (c == '\r' || c == 0x2028 || c == 0x2029 || c == 0x85) {
      if (c == '\r' && i + 1 < wide.size() && wide[i + 1] == '\n') ++i;
      out += U'\n';
    } else {
      out += c;
    }
  }
  return out;
}

// The length of ESC [ digits and ';' letter at the start of `text`; 0: it starts with none.
size_t TerminalEscape(std::u32string_view text) {
  if (text.size() < 3 || text[0] != 0x1B || text[1] != '[') return 0;
  size_t end = 2;
  while (end < text.size() && ((text[end] >= '0' && text[end] <= '9') || text[end] == ';')) ++end;
  const bool letter = end < text.size() && (text[end] | 0x20) >= 'a' && (text[end] | 0x20) <= 'z';
  return letter ? end + 1 : 0;
}

std::u32string WithoutControls(std::u32string_view text) {
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    if (const size_t escape = TerminalEscape(text.substr(i)); escape > 0) {
      i += escape;
      continue;
    }
    if (!IsUnwantedControl(text[i])) out += text[i];
    ++i;
  }
  return out;
}

// One line, repaired until nothing changes any more.
std::u32string RepairLine(std::u32string text, bool unescape) {
  for (;;) {
    const std::u32string before = text;
    if (unescape) text = UnescapeHtmlCautiously(text);
    text = ReplaceC1Controls(RepairMojibake(std::move(text)));
    text = ComposeCanonically(WithoutControls(PlainCharacters(text)));
    if (text == before) return text;
  }
}

// Lines are judged one by one; from the first that has a '<' on, text counts as HTML that is meant.
std::u32string RepairText(std::u32string_view text) {
  std::u32string out;
  bool unescape = true;
  while (!text.empty()) {
    const std::u32string_view line = text.substr(0, text.find(U'\n') + 1);
    const std::u32string_view segment = line.empty() ? text : line;
    unescape = unescape && segment.find(U'<') == segment.npos;
    out += RepairLine(std::u32string(segment), unescape);
    text.remove_prefix(segment.size());
  }
  return out;
}

std::u32string_view Strip(std::u32string_view text) {
  while (!text.empty() && IsStripSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsStripSpace(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string CleanPrompt(std::string_view prompt) {
  const std::u32string repaired = RepairText(DecodeUtf8OrThrow(prompt, "prompt"));
  const std::u32string unescaped = UnescapeHtml(UnescapeHtml(repaired));
  std::u32string spaced;
  bool in_space = false;
  for (const char32_t c : Strip(unescaped)) {
    const bool space = IsSpace(c);
    if (!space) {
      spaced += c;
    } else if (!in_space) {
      spaced += U' ';
    }
    in_space = space;
  }
  return EncodeUtf8(Strip(spaced));
}

}  // namespace equitile
