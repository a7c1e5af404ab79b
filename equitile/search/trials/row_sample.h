// Which rows of a layer are looked at where all would take too long. By seed and place alone: the
// same on any number of ranks, and after an interruption.
#pragma once

#include <cstdint>
#include <vector>

namespace equitile {

// A quarter of the rows, at least this many: over prompts, steps and passes every row is seen.
inline constexpr int64_t kLeastSampledRows = 8;
int64_t SampledRows(int64_t rows);

// So many of the rows, ascending, each as likely as any other. `place` tells calls apart.
std::vector<int64_t> SampleRows(int64_t rows, int64_t count, uint64_t seed, uint64_t place);

}  // namespace equitile
