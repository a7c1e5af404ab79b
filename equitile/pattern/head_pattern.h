// What one head attends to as a rule instead of bits: the modes of Sparse-vDiT (arXiv 2506.03065)
// and our `mean`, with sizes in units of the token grid, so that one rule serves any grid and block
// size.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/lane_masks.h"

namespace equitile {

enum class HeadMode : uint8_t {
  kFull,
  kSkip,           // nothing: the head's output is 0, text or not
  kDiagonal,       // a band in fhw: near in place and time
  kMultiDiagonal,  // a band in hwf: the same place, near or not, in all frames
  kStripes,        // the same keys for every query
  kMean,           // no block of the video, but all of them by their means
};
inline constexpr std::array<HeadMode, 6> kHeadModes = {
    HeadMode::kFull,          HeadMode::kSkip,    HeadMode::kDiagonal,
    HeadMode::kMultiDiagonal, HeadMode::kStripes, HeadMode::kMean};

// "full", "skip", "diagonal", "multi-diagonal", "stripes", "mean"
std::string_view HeadModeName(HeadMode mode);
HeadMode ParseHeadMode(std::string_view name);  // throws InputError

// A query and a key of the video belong together
//   kDiagonal       if their positions in fhw differ by at most `size` frames,
//   kMultiDiagonal  if their positions in hwf differ by at most `size` places (all frames of one
//   place), kStripes        if the key lies in one of the columns.
// A text token belongs to every token, except where the head is skipped. A block is kept if any of
// its pairs belong together.
struct HeadPattern {
  HeadMode mode = HeadMode::kFull;
  double size = 0;             // of a band; rounded to whole tokens
  std::vector<Range> columns;  // kStripes: video tokens numbered in home order, from 0

  friend bool operator==(const HeadPattern&, const HeadPattern&) = default;
};

// Throws InputError: a size that is not finite or negative, columns that are empty, none, not
// ascending, touching or outside the grid.
void CheckHeadPattern(const HeadPattern& head, const TokenGrid& grid);

// One pattern per head, the same for all batch items. Bands bring their token order, kMean its
// tail. Throws InputError as CheckHeadPattern and CheckBlockGrid do.
LaneMasks MakePatternMasks(std::span<const HeadPattern> heads, int64_t batch, const TokenGrid& grid,
                           int64_t block_tokens);

double PatternDensity(const HeadPattern& head, const TokenGrid& grid, int64_t block_tokens);

// The band whose density is nearest to the wanted one, among those of whole blocks.
HeadPattern BandOfDensity(HeadMode mode, double density, const TokenGrid& grid,
                          int64_t block_tokens);

// The short ladder of sizes that a search tries for each band; stripes take as many columns.
inline constexpr std::array<double, 5> kLadderDensities = {0.05, 0.1, 0.2, 0.3, 0.5};

// The same head on another grid: bands stay as they are, since their units follow the grid; a
// column keeps its share of the line, widened to whole tokens.
HeadPattern OnGrid(const HeadPattern& head, const TokenGrid& from, const TokenGrid& to);

}  // namespace equitile
