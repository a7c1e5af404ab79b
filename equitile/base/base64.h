// Bytes as text and back: for pages that hold their own data, and files that do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace equitile {

std::string Base64(std::span<const uint8_t> bytes);

// With or without the signs at the end that fill it up. Nothing: not base64.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace equitile
