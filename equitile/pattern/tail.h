// What becomes of the blocks that a mask does not keep: a word of its own, since masks, plans and
// kernels all say it.
#pragma once

#include <cstdint>

namespace equitile {

// What a block that is not kept counts for.
enum class Tail : uint8_t {
  kNone,  // nothing
  kMean,  // one key: the mean of its keys, with the weight of all of them and the mean of its
          // values
};

}  // namespace equitile
