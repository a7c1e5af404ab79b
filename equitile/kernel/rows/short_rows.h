// Rows of numbers in 16 bits with a power of two each: how output of attention in integers travels.
// Powers of two, so that a row that has been rounded rounds to itself: whoever is home to a row may
// round it again, and it does not matter whether it came from elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace equitile {

// Of a row on the wire: integers, then the upper half of its scale as f32, which is all of it.
constexpr int64_t ShortRowBytes(int64_t numbers) { return 2 * numbers + 2; }

// In place, to what would arrive: within 2^-15 of the largest of the row, and a row with a number
// that is not finite becomes NaN. Rows lie `stride` apart.
void RoundToShort(float* rows, int64_t count, int64_t numbers, int64_t stride);

// [count][numbers] one after the other -> [count][numbers] integers, [count] scales; and back.
void PackShort(const float* rows, int64_t count, int64_t numbers, std::byte* to);
void UnpackShort(const std::byte* from, int64_t count, int64_t numbers, float* rows);

}  // namespace equitile
