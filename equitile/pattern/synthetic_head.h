// One head of a synthetic mask: a family of shapes and a density. Apart from synthetic_mask so that
// what a head looks like and how heads are mixed can be changed one without the other.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/hash.h"
#include "equitile/pattern/block_mask.h"

namespace equitile {

inline constexpr int64_t kDensityOne = 1'000'000;  // the whole, in millionths
inline constexpr int64_t kActivityOne = 1024;      // fixed point of widths and activity

enum class HeadFamily : uint8_t { kBand, kDiagonals, kStripes, kPatches, kNoise };

struct SyntheticHead {
  HeadFamily family = HeadFamily::kBand;
  int64_t density_ppm = 0;
  uint64_t seed = 0;    // of its dithering and its stripes
  int64_t period = 1;   // kDiagonals: blocks between two diagonals
  int64_t stripes = 0;  // kStripes
};

// [blocks], around kActivityOne: how much is going on at a place of the video; wide rows come from
// there.
using VideoActivity = std::vector<int64_t>;

// Random bits by index.
inline uint64_t DrawBits(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  constexpr uint64_t kStep =
      0x9e3779b97f4a7c15;  // the golden ratio: neighbouring indices fall far apart
  return MixBits(MixBits(MixBits(seed * kStep + a + 1) + b * kStep + 1) + c * kStep + 1);
}

// Fills the lane, which must be empty. Density met within a few percent; every row keeps at least
// one block.
void WriteHead(const SyntheticHead& head, const VideoActivity& activity, int64_t lane,
               BlockMask& mask);

}  // namespace equitile
