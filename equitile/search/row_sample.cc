#include "equitile/search/row_sample.h"

#include <algorithm>
#include <numeric>

#include "equitile/base/hash.h"
#include "equitile/base/range.h"
#include "equitile/base/rng.h"

namespace equitile {

int64_t SampledRows(int64_t rows) {
  return std::min(rows, std::max(kLeastSampledRows, CeilDiv(rows, 4)));
}

std::vector<int64_t> SampleRows(int64_t rows, int64_t count, uint64_t seed, uint64_t place) {
  std::vector<int64_t> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  Rng rng(Hasher().Add(seed).Add(place).Digest());
  for (int64_t i = 0; i < count; ++i) {
    const auto other = i + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(rows - i)));
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(other)]);
  }
  all.resize(static_cast<size_t>(count));
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace equitile
