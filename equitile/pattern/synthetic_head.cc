#include "equitile/pattern/synthetic_head.h"

#include <algorithm>
#include <bit>
#include <span>

namespace equitile {
namespace {

// Writes one row; `size` is the head's free parameter in 1/kActivityOne: the larger, the more is
// kept.
class RowWriter {
 public:
  RowWriter(const SyntheticHead& head, const VideoActivity& activity)
      : head_(head), activity_(activity) {
    for (int64_t s = 0; s < head.stripes; ++s) {
      centers_.push_back(static_cast<int64_t>(DrawBits(head.seed, 1, static_cast<uint64_t>(s)) %
                                              static_cast<uint64_t>(Blocks())));
    }
  }

  void Write(int64_t q_block, int64_t size, std::span<uint64_t> row) const {
    switch (head_.family) {
      case HeadFamily::kBand:
        return Around(q_block, HalfWidth(q_block, size, 0), row);
      case HeadFamily::kDiagonals: {
        const int64_t half = HalfWidth(q_block, size, 0);
        if (2 * half + 1 >= head_.period) return SetBits(row, {0, Blocks()});
        for (int64_t at = q_block % head_.period - head_.period; at < Blocks() + half;
             at += head_.period) {
          Around(at, half, row);
        }
        return;
      }
      case HeadFamily::kStripes:
        Around(q_block, HalfWidth(q_block, size / 2, 0), row);
        for (size_t s = 0; s < centers_.size(); ++s)
          Around(centers_[s], HalfWidth(q_block, size, s + 1), row);
        return;
      case HeadFamily::kPatches:
        return Patches(q_block, size, row);
      case HeadFamily::kNoise:
        return Noise(q_block, size * kDensityOne / kActivityOne / Blocks(), row);
    }
  }

 private:
  int64_t Blocks() const { return static_cast<int64_t>(activity_.size()); }

  // Rounded up or down by chance, so that the mean is not tied to whole blocks; -1: nothing.
  int64_t HalfWidth(int64_t q_block, int64_t size, uint64_t salt) const {
    const int64_t width = size * activity_[static_cast<size_t>(q_block)] / kActivityOne;
    const int64_t dither = static_cast<int64_t>(
        DrawBits(head_.seed, 2, static_cast<uint64_t>(q_block), salt) % (2 * kActivityOne));
    return (width + dither) / (2 * kActivityOne) - 1;
  }

  void Around(int64_t center, int64_t half, std::span<uint64_t> row) const {
    const int64_t begin = std::max<int64_t>(0, center - half),
                  end = std::min(Blocks(), center + half + 1);
    if (begin < end) SetBits(row, {begin, end});
  }

  // Cells of a sixteenth of the video, kept or not as a whole, sooner where both places are active.
  void Patches(int64_t q_block, int64_t size, std::span<uint64_t> row) const {
    const int64_t cell = CeilDiv(Blocks(), 16);
    for (int64_t begin = 0; begin < Blocks(); begin += cell) {
      const int64_t end = std::min(begin + cell, Blocks());
      const int64_t active = activity_[static_cast<size_t>(q_block / cell * cell)] *
                             activity_[static_cast<size_t>(begin)] / kActivityOne;
      const uint64_t dice = DrawBits(head_.seed, 3, static_cast<uint64_t>(q_block / cell),
                                     static_cast<uint64_t>(begin)) %
                            kActivityOne;
      if (static_cast<int64_t>(dice) * Blocks() < size * active / kActivityOne)
        SetBits(row, {begin, end});
    }
  }

  // Each bit with probability ppm / kDensityOne in steps of 2^-12: AND and OR of random words,
  // lowest step first.
  void Noise(int64_t q_block, int64_t ppm, std::span<uint64_t> row) const {
    const int64_t steps = std::min<int64_t>(4096, ppm * 4096 / kDensityOne);
    if (steps == 4096) return SetBits(row, {0, Blocks()});
    for (size_t w = 0; w < row.size(); ++w) {
      uint64_t bits = 0;
      for (uint64_t step = 0; step < 12; ++step) {
        const uint64_t random = DrawBits(head_.seed, 4 + step, static_cast<uint64_t>(q_block), w);
        bits = (steps >> step) & 1 ? bits | random : bits & random;
      }
      row[w] |= bits;
    }
    if (Blocks() % 64 != 0) row.back() &= (uint64_t{1} << (Blocks() % 64)) - 1;
  }

  const SyntheticHead& head_;
  const VideoActivity& activity_;
  std::vector<int64_t> centers_;
};

// Kept blocks with this size in every `step`-th row.
int64_t CountSampled(const RowWriter& writer, int64_t blocks, int64_t step, int64_t size) {
  std::vector<uint64_t> row(static_cast<size_t>(CeilDiv(blocks, 64)));
  int64_t kept = 0;
  for (int64_t q_block = step / 2; q_block < blocks; q_block += step) {
    std::fill(row.begin(), row.end(), 0);
    writer.Write(q_block, size, row);
    for (uint64_t word : row) kept += std::popcount(word);
  }
  return kept;
}

}  // namespace

void WriteHead(const SyntheticHead& head, const VideoActivity& activity, int64_t lane,
               BlockMask& mask) {
  const int64_t blocks = mask.QBlocks();
  if (head.density_ppm == kDensityOne) {
    for (int64_t q_block = 0; q_block < blocks; ++q_block) {
      mask.SetRange(lane, q_block, {0, blocks});
    }
    return;
  }
  const RowWriter writer(head, activity);
  // Bisection on the size: the count grows with it. Sixty-four rows decide, so that large masks
  // stay cheap.
  const int64_t step = CeilDiv(blocks, 64);
  const int64_t wanted = CeilDiv(blocks - step / 2, step) * blocks * head.density_ppm / kDensityOne;
  int64_t below = 0, above = head.family == HeadFamily::kNoise ? blocks * kActivityOne
                                                               : 16 * blocks * kActivityOne;
  while (above - below > 1) {
    const int64_t middle = (below + above) / 2;
    (CountSampled(writer, blocks, step, middle) < wanted ? below : above) = middle;
  }
  for (int64_t q_block = 0; q_block < blocks; ++q_block) {
    writer.Write(q_block, above, mask.MutableRow(lane, q_block));
    if (mask.RowCount(lane, q_block) == 0) mask.Set(lane, q_block, q_block);
  }
}

}  // namespace equitile
