#include "equitile/model/text/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>

#include "equitile/base/error.h"
#include "equitile/model/text/unicode_tables.h"

namespace equitile {
namespace {

using namespace unicode_tables;

// In the order of scripts/make-text-tables.
enum class ClusterClass : uint8_t {
  kOther,
  kControl,
  kCr,
  kLf,
  kExtend,
  kZwj,
  kSpacingMark,
  kPrepend,
  kRegional,
  kL,
  kV,
  kT,
  kLv,
  kLvt,
  kPictograph
};

constexpr char32_t kSyllables = 0xAC00, kSyllablesEnd = 0xD7A4;
constexpr char32_t kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr uint32_t kNeverComposed = 1u << 31;

bool IsSyllable(char32_t code) { return code >= kSyllables && code < kSyllablesEnd; }

// The class of the last run that starts at or before `code`.
uint32_t ClassOf(std::span<const uint32_t> runs, char32_t code) {
  const auto after = std::upper_bound(runs.begin(), runs.end(), code << 8 | 0xFFu);
  return after[-1] & 0xFFu;
}

uint8_t CombiningClass(char32_t code) {
  return static_cast<uint8_t>(code < 0x300 ? 0 : ClassOf(kCombining, code));
}

const uint32_t* FindDecomposition(char32_t code) {
  size_t low = 0, high = std::size(kDecompositions) / 3;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const uint32_t at = kDecompositions[3 * middle] & ~kNeverComposed;
    if (at == code) return kDecompositions + 3 * middle;
    (at < code ? low : high) = at < code ? middle + 1 : middle;
  }
  return nullptr;
}

void AppendDecomposed(char32_t code, std::u32string& out) {
  if (IsSyllable(code)) {
    const char32_t index = code - kSyllables;
    out += kLeads + index / (kVowelCount * kTailCount);
    out += kVowels + index / kTailCount % kVowelCount;
    if (index % kTailCount != 0) out += kTails + index % kTailCount;
    return;
  }
  const uint32_t* parts = code < 0xC0 ? nullptr : FindDecomposition(code);
  if (parts == nullptr) {
    out += code;
    return;
  }
  AppendDecomposed(parts[1], out);
  if (parts[2] != 0) AppendDecomposed(parts[2], out);
}

// 0: the two do not compose.
char32_t Composed(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels &&
      second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + second - kVowels) * kTailCount;
  }
  if (IsSyllable(first) && (first - kSyllables) % kTailCount == 0 && second > kTails &&
      second < kTails + kTailCount) {
    return first + second - kTails;
  }
  static const std::unordered_map<uint64_t, char32_t> pairs = [] {
    std::unordered_map<uint64_t, char32_t> found;
    for (size_t i = 0; i < std::size(kDecompositions); i += 3) {
      const uint32_t* entry = kDecompositions + i;
      if ((entry[0] & kNeverComposed) == 0) {
        found.emplace(uint64_t{entry[1]} << 32 | entry[2], entry[0]);
      }
    }
    return found;
  }();
  const auto found = pairs.find(uint64_t{first} << 32 | second);
  return found == pairs.end() ? 0 : found->second;
}

ClusterClass ClusterClassOf(char32_t code) {
  if (IsSyllable(code)) {
    return (code - kSyllables) % kTailCount == 0 ? ClusterClass::kLv : ClusterClass::kLvt;
  }
  return static_cast<ClusterClass>(ClassOf(kCluster, code));
}

bool EndsLine(ClusterClass c) {
  return c == ClusterClass::kControl || c == ClusterClass::kCr || c == ClusterClass::kLf;
}

bool HangulContinues(ClusterClass before, ClusterClass after) {
  using enum ClusterClass;
  if (before == kL) return after == kL || after == kV || after == kLv || after == kLvt;
  if (before == kLv || before == kV) return after == kV || after == kT;
  return (before == kLvt || before == kT) && after == kT;
}

// The byte length of the sequence that starts with `lead`; 0: none does.
size_t SequenceLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
}

// Decodes as far as the bytes are valid; the number of bytes taken.
size_t DecodePrefix(std::string_view bytes, std::u32string& out) {
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t at = 0;
  while (at < bytes.size()) {
    const auto lead = static_cast<unsigned char>(bytes[at]);
    const size_t length = SequenceLength(lead);
    if (length == 0 || length > bytes.size() - at) return at;
    char32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t i = 1; i < length; ++i) {
      const auto next = static_cast<unsigned char>(bytes[at + i]);
      if ((next & 0xC0u) != 0x80) return at;
      code = code << 6 | (next & 0x3Fu);
    }
    if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return at;
    out += code;
    at += length;
  }
  return at;
}

}  // namespace

std::optional<std::u32string> DecodeUtf8(std::string_view bytes) {
  std::u32string text;
  if (DecodePrefix(bytes, text) < bytes.size()) return std::nullopt;
  return text;
}

std::u32string DecodeUtf8OrThrow(std::string_view bytes, std::string_view name) {
  std::u32string text;
  const size_t valid = DecodePrefix(bytes, text);
  if (valid < bytes.size()) {
    throw InputError("[model] {}: byte {} (0x{:02X}) is not valid UTF-8; text must be UTF-8", name,
                     valid, static_cast<unsigned char>(bytes[valid]));
  }
  return text;
}

void AppendUtf8(char32_t code, std::string& out) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string EncodeUtf8(std::u32string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char32_t code : text) AppendUtf8(code, bytes);
  return bytes;
}

std::u32string ComposeCanonically(std::u32string_view text) {
  std::u32string parts;
  for (const char32_t code : text) AppendDecomposed(code, parts);
  // Runs of combining marks in the order of their classes.
  for (size_t begin = 0; begin < parts.size(); ++begin) {
    size_t end = begin;
    while (end < parts.size() && CombiningClass(parts[end]) != 0) ++end;
    std::stable_sort(parts.begin() + static_cast<ptrdiff_t>(begin),
                     parts.begin() + static_cast<ptrdiff_t>(end),
                     [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
  // A mark joins the last starter unless one of its own class, or another starter, is between.
  std::u32string out;
  size_t starter = 0;
  bool have_starter = false;
  uint8_t last_class = 0;
  for (const char32_t code : parts) {
    const uint8_t combining = CombiningClass(code);
    const bool adjacent = have_starter && out.size() == starter + 1;
    const bool free = have_starter && (adjacent || (combining != 0 && last_class < combining));
    const char32_t joined = free ? Composed(out[starter], code) : 0;
    if (joined != 0) {
      out[starter] = joined;
      continue;
    }
    out += code;
    last_class = combining;
    if (combining == 0) {
      starter = out.size() - 1;
      have_starter = true;
    }
  }
  return out;
}

size_t FirstCluster(std::u32string_view text) {
  using enum ClusterClass;
  if (text.empty()) return 0;
  ClusterClass before = ClusterClassOf(text[0]);
  bool pictograph = before == kPictograph;  // so far Pictograph Extend*
  bool joined_pictograph = false;           // so far Pictograph Extend* ZWJ
  size_t regional = before == kRegional ? 1 : 0;
  size_t length = 1;
  for (; length < text.size(); ++length) {
    const ClusterClass after = ClusterClassOf(text[length]);
    bool joins = false;
    if (EndsLine(before) || EndsLine(after)) {
      joins = before == kCr && after == kLf;
    } else {
      joins = after == kExtend || after == kZwj || after == kSpacingMark || before == kPrepend ||
              HangulContinues(before, after) || (joined_pictograph && after == kPictograph) ||
              (before == kRegional && after == kRegional && regional % 2 == 1);
    }
    if (!joins) break;
    joined_pictograph = pictograph && after == kZwj;
    pictograph = after == kPictograph || (pictograph && after == kExtend);
    regional = after == kRegional ? regional + 1 : 0;
    before = after;
  }
  return length;
}

bool IsSpace(char32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool IsStripSpace(char32_t code) { return IsSpace(code) || (code >= 0x1C && code <= 0x1F); }

bool IsWordCharacter(char32_t code) { return ClassOf(kWord, code) != 0; }

bool AppendOrdinaryWidth(char32_t code, std::u32string& out) {
  if (code < 0xFF01 || code - 0xFF01 >= std::size(kWidths)) return false;
  const uint32_t packed = kWidths[code - 0xFF01];
  if (packed == 0) return false;
  out += packed & 0xFFFFu;
  if (packed >> 16 != 0) out += packed >> 16;
  return true;
}

}  // namespace equitile
