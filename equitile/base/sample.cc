#include "equitile/base/sample.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace equitile {

std::vector<int64_t> DrawSample(int64_t size, int64_t count, Rng rng) {
  std::vector<int64_t> drawn(static_cast<size_t>(size));
  std::iota(drawn.begin(), drawn.end(), 0);
  if (count >= size) return drawn;
  for (int64_t i = 0; i < count; ++i) {
    const auto other = i + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(size - i)));
    std::swap(drawn[static_cast<size_t>(i)], drawn[static_cast<size_t>(other)]);
  }
  drawn.resize(static_cast<size_t>(count));
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace equitile
