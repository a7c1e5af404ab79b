// Bytes as text, for pages that hold their own data.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace equitile {

std::string Base64(std::span<const uint8_t> bytes);

}  // namespace equitile
