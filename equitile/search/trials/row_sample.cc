#include "equitile/search/trials/row_sample.h"

#include <algorithm>

#include "equitile/base/hash.h"
#include "equitile/base/range.h"
#include "equitile/base/sample.h"

namespace equitile {

int64_t SampledRows(int64_t rows) {
  return std::min(rows, std::max(kLeastSampledRows, CeilDiv(rows, 4)));
}

std::vector<int64_t> SampleRows(int64_t rows, int64_t count, uint64_t seed, uint64_t place) {
  return DrawSample(rows, count, Rng(Hasher().Add(seed).Add(place).Digest()));
}

}  // namespace equitile
