// Some of many, drawn without repeating one.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/rng.h"

namespace equitile {

// `count` numbers of [0, size), ascending; all of them where there are no more.
std::vector<int64_t> DrawSample(int64_t size, int64_t count, Rng rng);

}  // namespace equitile
