// The code page in which most broken text was misread, both ways. The bytes it leaves undefined
// stand for themselves, as in browsers.
#pragma once

#include <cstdint>
#include <optional>

namespace equitile {

inline constexpr char16_t kWindows1252[32] = {  // of bytes 80 to 9F
    0x20AC, 0x0081, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0x008D, 0x017D, 0x008F, 0x0090, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x009D, 0x017E, 0x0178};

inline char32_t FromWindows1252(uint8_t byte) {
  return byte >= 0x80 && byte < 0xA0 ? kWindows1252[byte - 0x80] : byte;
}

inline std::optional<uint8_t> ToWindows1252(char32_t code) {
  if (code < 0x80 || (code >= 0xA0 && code < 0x100)) return static_cast<uint8_t>(code);
  for (uint8_t i = 0; i < 32; ++i) {
    if (kWindows1252[i] == code) return static_cast<uint8_t>(0x80 + i);
  }
  return std::nullopt;
}

}  // namespace equitile
