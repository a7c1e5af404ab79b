// The name of a mask: ranks compare it, and plan files say which mask they were made for.
#pragma once

#include <cstdint>

#include "equitile/pattern/block_mask.h"

namespace equitile {

// Of shape and bits; the same on every machine. Not for hostile input.
uint64_t HashMask(const BlockMask& mask);

}  // namespace equitile
