#include "equitile/kernel/rounding_error.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/kernel/rounding.h"

namespace equitile {
namespace {

constexpr int64_t kRows = 64;

uint32_t BitsWithoutSign(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFF; }

}  // namespace

double RoundingError(std::span<const ConstView> matrices, Compute compute) {
  double errors = 0, squares = 0;
  std::vector<float> row;
  for (const ConstView& matrix : matrices) {
    row.resize(static_cast<size_t>(matrix.Extent(1)));
    const int64_t out = matrix.Extent(0), rows = std::min(out, kRows);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = EvenPart(out, r, rows).begin;
      uint32_t most = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = matrix.Load(at, static_cast<int64_t>(i));
        most = std::max(most, BitsWithoutSign(row[i]));
      }
      const RoundingScale scale = ScaleFor(most, compute);
      for (const float x : row) {
        const float rounded = std::nearbyint(x * scale.inverse) * scale.scale;
        const double error = static_cast<double>(rounded) - static_cast<double>(x);
        errors += error * error;
        squares += static_cast<double>(x) * static_cast<double>(x);
      }
    }
  }
  return squares == 0 ? 0 : std::sqrt(errors / squares);
}

}  // namespace equitile
