// Memory that is kept for later but not needed now.
#pragma once

#include <cstddef>
#include <span>

namespace equitile {

// Gives the whole pages within back to the system until they are written again. Contents are lost,
// but what was 0 is 0. `bytes` must be private memory, as from AlignedBuffer.
void DropPages(std::span<std::byte> bytes);

}  // namespace equitile
