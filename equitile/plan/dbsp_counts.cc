#include "equitile/plan/dbsp_counts.h"

#include <algorithm>
#include <bit>

namespace equitile {
namespace {

constexpr uint64_t kByteOnes = 0x0101010101010101;

int64_t CountBits(const uint64_t* words, int64_t count) {
  int64_t bits = 0;
  for (int64_t w = 0; w < count; ++w) bits += std::popcount(words[w]);
  return bits;
}

// sum + 2·carry = a + b + c, bit by bit.
struct CarrySave {
  uint64_t sum, carry;
};
inline CarrySave AddBits(uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t half = a ^ b;
  return {half ^ c, (a & b) | (half & c)};
}

}  // namespace

MaskMarginals CountMarginals(const BlockMask& mask, bool want_rows) {
  const int64_t lanes = mask.LaneCount(), rows = mask.QBlocks(), words = mask.WordsPerRow();
  MaskMarginals out;
  out.lane.resize(static_cast<size_t>(lanes));
  if (!want_rows) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      out.lane[static_cast<size_t>(lane)] = CountBits(mask.Row(lane, 0).data(), rows * words);
    }
    return out;
  }
  out.q_row.resize(static_cast<size_t>(rows));
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const uint64_t* row = mask.Row(lane, 0).data();
    int64_t kept = 0;
    for (int64_t i = 0; i < rows; ++i, row += words) {
      const int64_t bits = CountBits(row, words);
      out.q_row[static_cast<size_t>(i)] += bits;
      kept += bits;
    }
    out.lane[static_cast<size_t>(lane)] = kept;
  }
  return out;
}

void ColumnCounter::Fold() {
  const auto& row = pending_;
  uint64_t* __restrict ones = planes_.data();
  uint64_t* __restrict twos = ones + words_;
  uint64_t* __restrict fours = twos + words_;
  uint64_t* __restrict bytes = bytes_.data();
  for (int64_t w = 0; w < words_; ++w) {
    const CarrySave a = AddBits(ones[w], row[0][w], row[1][w]);
    const CarrySave b = AddBits(a.sum, row[2][w], row[3][w]);
    const CarrySave c = AddBits(b.sum, row[4][w], row[5][w]);
    const CarrySave d = AddBits(c.sum, row[6][w], row[7][w]);
    const CarrySave ab = AddBits(twos[w], a.carry, b.carry);
    const CarrySave cd = AddBits(ab.sum, c.carry, d.carry);
    const CarrySave all = AddBits(fours[w], ab.carry, cd.carry);
    ones[w] = d.sum;
    twos[w] = cd.sum;
    fours[w] = all.sum;
    for (int64_t b8 = 0; b8 < 8; ++b8) bytes[b8 * words_ + w] += (all.carry >> b8) & kByteOnes;
  }
  pending_count_ = 0;
  if (++folds_ == 255) FlushBytes();
}

void ColumnCounter::FlushBytes() {
  eights_.resize(static_cast<size_t>(words_ * 64));
  for (int64_t b = 0; b < 8; ++b) {
    for (int64_t w = 0; w < words_; ++w) {
      uint64_t& packed = bytes_[static_cast<size_t>(b * words_ + w)];
      for (int64_t t = 0; t < 8; ++t) {
        eights_[static_cast<size_t>(w * 64 + t * 8 + b)] +=
            static_cast<int32_t>((packed >> (8 * t)) & 255);
      }
      packed = 0;
    }
  }
  folds_ = 0;
}

void ColumnCounter::Drain(std::span<int32_t> counts) {
  if (pending_count_ > 0) {
    zeros_.resize(static_cast<size_t>(words_));
    while (pending_count_ > 0) Add(zeros_.data());
  }
  FlushBytes();
  const uint64_t* ones = planes_.data();
  const uint64_t* twos = ones + words_;
  const uint64_t* fours = twos + words_;
  for (size_t j = 0; j < counts.size(); ++j) {
    const size_t w = j / 64, shift = j % 64;
    counts[j] += static_cast<int32_t>(((ones[w] >> shift) & 1) + 2 * ((twos[w] >> shift) & 1) +
                                      4 * ((fours[w] >> shift) & 1)) +
                 8 * eights_[j];
  }
  std::fill(planes_.begin(), planes_.end(), 0);
  std::fill(eights_.begin(), eights_.end(), 0);
}

}  // namespace equitile
