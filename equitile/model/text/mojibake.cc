#include "equitile/model/text/mojibake.h"

#include <algorithm>
#include <optional>

#include "equitile/model/text/unicode.h"
#include "equitile/model/text/windows1252.h"

namespace equitile {
namespace {

constexpr char32_t kLost = 0xFFFD;
constexpr uint8_t kLostByte =
    0x1A;  // stands for U+FFFD among bytes: one that nobody knows any more

// Kinds of the characters that bytes 80 to FF are misread as; a character may be of several.
enum Kind : uint32_t {
  kCommon = 1 << 0,  // proves nothing
  kC1 = 1 << 1,      // control characters
  kBad = 1 << 2,     // hardly ever written on purpose
  kLaw = 1 << 3,     // section signs
  kMoney = 1 << 4,
  kOpening = 1 << 5,  // punctuation before a word
  kClosing = 1 << 6,  // punctuation after a word
  kNumeric = 1 << 7,
  kUpper = 1 << 8,        // accented capitals
  kLower = 1 << 9,        // accented small letters
  kPlainUpper = 1 << 10,  // capitals without accent: thorn, Greek, Cyrillic
  kPlainLower = 1 << 11,
};
constexpr uint32_t kSigns = kOpening | kClosing | kMoney | kNumeric | kLaw;
constexpr uint32_t kAccented = kUpper | kLower;

bool In(char32_t code, std::u32string_view set) { return set.find(code) != set.npos; }

uint32_t KindOf(char32_t c) {
  if (c < 0x80) return 0;
  if (c < 0xA0) return kC1;
  if (In(c, U"\u00A0\u00AD\u00B7\u00B4–—―…’")) return kCommon;
  if (In(c, U"¦¤¨¬¯¸ƒˆ˜†‡‰\uFFFDªº")) return kBad;
  if (In(c, U"¶§")) return kLaw;
  if (In(c, U"¢£¥€")) return kMoney;
  if (In(c, U"¡«¿©‘‚“„•‹")) return kOpening;
  if (In(c, U"®»”›™")) return kClosing;
  if (In(c, U"²³¹±¼½¾×µ÷")) return kNumeric;
  if ((c >= U'À' && c <= U'Ñ') || In(c, U"ØÜÝŒŠŸŽ")) return kUpper;
  if ((c >= U'à' && c <= U'ñ') || In(c, U"ßüœšž")) return kLower;
  if (c == U'Þ' || (c >= 0x391 && c <= 0x3A9) || (c >= 0x401 && c <= 0x42F) ||
      In(c, U"ΆΈΉΊΌΎΏΪΫ")) {
    return kPlainUpper;
  }
  if ((c >= 0x3B1 && c <= 0x3C9) || (c >= 0x430 && c <= 0x45F) || In(c, U"άέήίΰ")) {
    return kPlainLower;
  }
  return 0;
}

bool IsAsciiLower(char32_t c) { return c >= 'a' && c <= 'z'; }
bool IsAsciiLetter(char32_t c) { return IsAsciiLower(c | 0x20); }

struct PairRule {
  uint32_t first, second;
};
constexpr PairRule kBadPairs[] = {
    {kBad | kAccented | kSigns, kBad},
    {kBad, kAccented | kSigns},
    {kLower | kPlainLower | kClosing | kMoney | kNumeric, kUpper},
    {kClosing | kMoney | kNumeric, kLower},
    {kLower | kClosing, kMoney},
    {kUpper, kNumeric | kLaw},
    {kMoney | kNumeric, kOpening},
};
struct TripleRule {
  uint32_t first, second, third;
};
constexpr TripleRule kBadTriples[] = {
    {kAccented | kMoney | kClosing, kOpening, kNumeric},
    {kAccented | kMoney | kNumeric | kLaw, kClosing, kOpening},
};

// Pairs of single characters that no kind describes: what two-byte sequences look like.
bool IsBadPair(char32_t a, char32_t b) {
  if (In(a, U"Œœ") && !IsAsciiLetter(b)) return true;
  if ((KindOf(a) & kUpper) != 0 && b == U'°') return true;
  if (In(a, U"ÂÃÎÐ") &&
      ((KindOf(b) & (kOpening | kClosing)) != 0 || In(b, U"€œŠš¢£Ÿž\u00A0\u00AD°·–—´"))) {
    return true;
  }
  return (a == U'×' && In(b, U"²³")) || (a == U'à' && In(b, U"²µ¹¼½¾")) ||
         (a == U'Ã' && In(b, U"\u00A0¡"));
}

bool IsArabicPair(char32_t a, char32_t b) {
  return In(a, U"ØÙ") &&
         ((KindOf(b) & (kCommon | kMoney | kBad | kNumeric | kOpening)) != 0 || In(b, U"ŸŠ®°µ»"));
}

// What stands at the start of `text` looks broken; `at_start`: of the whole text too.
bool BrokenHere(std::u32string_view text, bool at_start) {
  const auto at = [text](size_t i) { return i < text.size() ? text[i] : U'\0'; };
  const char32_t a = at(0), b = at(1), c = at(2);
  const uint32_t ka = KindOf(a), kb = KindOf(b), kc = KindOf(c);
  if ((ka & kC1) != 0) return true;
  const bool a_tilde_or_hat = In(a, U"ÃÂ"), b_tilde_or_hat = In(b, U"ÃÂ");
  if (at_start && a_tilde_or_hat && b == ' ') return true;
  if (IsAsciiLower(a) &&
      ((b_tilde_or_hat && c == ' ') || (IsStripSpace(b) && In(c, U"ÃÂ") && at(3) == ' '))) {
    return true;
  }
  if (text.size() >= 2 && IsBadPair(a, b)) return true;
  for (const auto& [first, second] : kBadPairs) {
    if ((ka & first) != 0 && (kb & second) != 0) return true;
  }
  for (const auto& [first, second, third] : kBadTriples) {
    if ((ka & first) != 0 && (kb & second) != 0 && (kc & third) != 0) return true;
  }
  if (text.size() < 3) return false;
  if (IsAsciiLetter(a) && (kb & (kPlainUpper | kPlainLower)) != 0 && (kc & kBad) != 0) return true;
  if (IsStripSpace(a) && (kb & kUpper) != 0 && (kc & kMoney) != 0) return true;
  if (IsAsciiLower(a) && (kb & kUpper) != 0 && (kc & (kOpening | kMoney)) != 0) return true;
  if ((ka & kAccented) != 0 && (kb & (kOpening | kClosing)) != 0 && IsWordCharacter(c)) return true;
  if ((IsAsciiLower(a) || In(a, U".,?!") || (ka & kClosing) != 0) && b == U'Â' &&
      (c == ' ' || (kc & (kOpening | kClosing)) != 0)) {
    return true;
  }
  return text.size() >= 4 && IsArabicPair(a, b) && IsArabicPair(c, at(3));
}

bool Continues(uint8_t byte) { return byte >= 0x80 && byte < 0xC0; }
// What may stand after a lead byte in place of A0, which some program turned into a space. 85 would
// be an ellipsis.
bool ContinuesBesideSpace(uint8_t byte) { return Continues(byte) && byte != 0x85 && byte != 0xA0; }

using Bytes = std::basic_string_view<uint8_t>;
using ByteString = std::basic_string<uint8_t>;

// The length of a UTF-8 sequence in which a space stands for A0; 0: none starts here. Restricted to
// leads for which the character is likelier than a space.
size_t SequenceWithSpace(Bytes b) {
  const auto at = [b](size_t i) { return i < b.size() ? b[i] : uint8_t{0}; };
  const uint8_t lead = at(0);
  if (at(1) == ' ' && (lead == 0xC2 || lead == 0xC3 || lead == 0xC5 || lead == 0xCE ||
                       lead == 0xD0 || lead == 0xD9)) {
    return 2;
  }
  if (lead >= 0xE0 && lead <= 0xE3) {
    if (lead >= 0xE2 && at(1) == ' ' && ContinuesBesideSpace(at(2))) return 3;
    if (ContinuesBesideSpace(at(1)) && at(2) == ' ') return 3;
  }
  if (lead == 0xF0) {
    int spaces = 0, continuing = 0;
    for (size_t i = 1; i < 4; ++i) {
      spaces += at(i) == ' ' ? 1 : 0;
      continuing += Continues(at(i)) ? 1 : 0;
    }
    if (spaces == 1 && continuing == 2) return 4;
  }
  return 0;
}

// "Ã la mode" lost its A0 to the space that follows: that space stays. Not before the Portuguese
// contractions "às", "àquele", ...
bool IsGraveWord(Bytes b) {
  if (b.size() < 2 || b[0] != 0xC3 || b[1] != ' ') return false;
  const std::string_view rest(reinterpret_cast<const char*>(b.data()) + 2, b.size() - 2);
  for (const std::string_view exception : {" ", "quele", "quela", "quilo", "s "}) {
    if (rest.starts_with(exception)) return false;
  }
  return true;
}

ByteString RestoreSpaces(const ByteString& bytes) {
  bool any = false;
  for (size_t i = 0; i < bytes.size() && !any; ++i)
    any = SequenceWithSpace(Bytes(bytes).substr(i)) > 0;
  if (!any) return bytes;
  ByteString words, out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    words += bytes[i];
    if (IsGraveWord(Bytes(bytes).substr(i))) words += 0xA0;
  }
  for (size_t i = 0; i < words.size();) {
    const size_t length = std::max<size_t>(SequenceWithSpace(Bytes(words).substr(i)), 1);
    for (size_t k = 0; k < length; ++k) {
      out += length > 1 && words[i + k] == ' ' ? uint8_t{0xA0} : words[i + k];
    }
    i += length;
  }
  return out;
}

// The length of a sequence of which bytes were lost (1A, in some places also '?'); 0: none.
size_t LossySequence(Bytes b) {
  const auto at = [b](size_t i) { return i < b.size() ? b[i] : uint8_t{0}; };
  const auto is_lost = [](uint8_t c) { return c == kLostByte || c == '?'; };
  const auto may_follow = [](uint8_t c) { return c == kLostByte || Continues(c); };
  const uint8_t lead = at(0);
  if (lead >= 0xC2 && lead <= 0xDF && at(1) == kLostByte) return 2;
  if ((lead == 0xC2 || lead == 0xC3) && at(1) == '?') return 2;
  if (lead == 0xED && at(1) >= 0xA0 && at(1) <= 0xAF && at(3) == 0xED && at(4) >= 0xB0 &&
      at(4) <= 0xBF) {
    const bool second_ok = is_lost(at(2)) || Continues(at(2));
    const bool last_ok = is_lost(at(5)) || Continues(at(5));
    if (second_ok && last_ok && (is_lost(at(2)) || is_lost(at(5)))) return 6;
  }
  const size_t length = lead >= 0xE0 && lead <= 0xEF ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  for (size_t lost = 1; lost < length; ++lost) {  // one may be '?', the others not
    bool fits = is_lost(at(lost));
    for (size_t i = 1; i < length; ++i) fits = fits && (i == lost || may_follow(at(i)));
    if (fits) return length;
  }
  return lead == kLostByte ? 1 : 0;
}

ByteString ReplaceLossy(const ByteString& bytes) {
  ByteString out;
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = LossySequence(Bytes(bytes).substr(i));
    if (length == 0) {
      out += bytes[i++];
      continue;
    }
    out += {0xEF, 0xBF, 0xBD};
    i += length;
  }
  return out;
}

// UTF-8, with characters beyond U+FFFF also as two surrogates of three bytes and U+0000 as C0 80.
std::optional<std::u32string> DecodeVariants(const ByteString& bytes) {
  std::string plain;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto at = [&](size_t k) { return i + k < bytes.size() ? bytes[i + k] : uint8_t{0}; };
    if (at(0) == 0xC0 && at(1) == 0x80) {
      plain += '\0';
      i += 1;
    } else if (at(0) == 0xED && at(1) >= 0xA0 && at(1) <= 0xAF && Continues(at(2)) &&
               at(3) == 0xED && at(4) >= 0xB0 && at(4) <= 0xBF && Continues(at(5))) {
      AppendUtf8(0x10000u + ((at(1) & 0x0Fu) << 16) + ((at(2) & 0x3Fu) << 10) +
                     ((at(4) & 0x0Fu) << 6) + (at(5) & 0x3Fu),
                 plain);
      i += 5;
    } else {
      plain += static_cast<char>(bytes[i]);
    }
  }
  return DecodeUtf8(plain);
}

std::optional<ByteString> AsLatin1(std::u32string_view text) {
  ByteString bytes;
  for (const char32_t c : text) {
    if (c > 0xFF) return std::nullopt;
    bytes += static_cast<uint8_t>(c);
  }
  return bytes;
}

std::optional<ByteString> AsWindows1252(std::u32string_view text) {
  ByteString bytes;
  for (const char32_t c : text) {
    const std::optional<uint8_t> byte = c == kLost ? kLostByte : ToWindows1252(c);
    if (!byte || c == kLostByte) return std::nullopt;
    bytes += *byte;
  }
  return bytes;
}

// What a character may be within a misread sequence: also what other code pages make of the bytes,
// so that a run ends where theirs would.
bool IsContinuation(char32_t c) {
  if (c == ' ' || (c >= 0x80 && c < 0xC0)) return true;
  const auto byte = ToWindows1252(c);
  return (byte && Continues(*byte)) ||
         In(c, U"ÆØæø―ĄąĽľŁłŖŗŚśŞşŤťŹźŻżˇ˘˛˝΄΅ΆΈΉΊΌΎΏЁЂЃЄЅІЇЈЉЊЋЌЎЏёђѓєѕіїјљњћќўџҐґ№");
}
bool IsStrictContinuation(char32_t c) { return IsContinuation(c) && !In(c, U" –—―‘’‚“”„•…"); }

size_t SequenceOfLead(char32_t c) {
  if ((c >= U'Â' && c <= U'ß') || (c >= U'Β' && c <= U'ί') || (c >= U'В' && c <= U'Я') ||
      In(c, U"ŠŽĀĂĆČĎĐĒĖĘĚĞĢĪİĶĹĻŁŃŅŇŌŐŘŚŞŢŪŮŰŲŹŻ")) {
    return 2;
  }
  if ((c >= U'à' && c <= U'ï') || (c >= U'ΰ' && c <= U'ο') || (c >= U'а' && c <= U'п') ||
      In(c, U"āăąćčďēėęěģīįķĺļŕź")) {
    return 3;
  }
  return In(c, U"ðóšđğπσру") ? 4 : 0;
}

// The length of a run of misread sequences that starts at the start of `text`.
size_t MisreadRun(std::u32string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t length = SequenceOfLead(text[end]);
    if (length == 0 || length > text.size() - end) break;
    const auto rest = text.substr(end + 1, length - 1);
    if (!std::all_of(rest.begin(), rest.end(), IsContinuation)) break;
    end += length;
  }
  return end;
}

// Repairs broken pieces within text that is not broken as a whole.
std::u32string RepairPieces(std::u32string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const bool may_start = at == 0 || !IsStrictContinuation(text[at - 1]);
    const size_t length = may_start ? MisreadRun(text.substr(at)) : 0;
    const std::u32string_view piece = text.substr(at, std::max<size_t>(length, 1));
    const bool repair = length > 0 && length < text.size() && LooksBroken(piece);
    out += repair ? RepairMojibake(std::u32string(piece)) : std::u32string(piece);
    at += piece.size();
  }
  return out;
}

std::u32string RepairOnce(const std::u32string& text) {
  if (!LooksBroken(text)) return text;
  const auto latin1 = AsLatin1(text);
  if (latin1) {
    if (auto repaired = DecodeVariants(RestoreSpaces(*latin1))) return *repaired;
  }
  if (const auto bytes = AsWindows1252(text)) {
    if (auto repaired = DecodeVariants(ReplaceLossy(RestoreSpaces(*bytes)))) return *repaired;
  }
  std::u32string pieces = RepairPieces(text);
  return pieces != text ? pieces : ReplaceC1Controls(text);
}

}  // namespace

bool LooksBroken(std::u32string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (BrokenHere(text.substr(i), i == 0)) return true;
  }
  return false;
}

std::u32string RepairMojibake(std::u32string text) {
  for (;;) {
    std::u32string repaired = RepairOnce(text);
    if (repaired == text) return text;
    text = std::move(repaired);
  }
}

std::u32string ReplaceC1Controls(std::u32string text) {
  for (char32_t& c : text) {
    if (c >= 0x80 && c < 0xA0) c = FromWindows1252(static_cast<uint8_t>(c));
  }
  return text;
}

}  // namespace equitile
