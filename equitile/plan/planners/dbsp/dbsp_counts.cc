#include "equitile/plan/planners/dbsp/dbsp_counts.h"

#include <algorithm>
#include <bit>

#include "equitile/base/bit_count.h"

namespace equitile {
namespace {

constexpr uint64_t kByteOnes = 0x0101010101010101;

// Below it the popcnt instruction, word by word, is faster than carry-save adders.
constexpr int64_t kFewWords = 256;

// sum + 2·carry = a + b + c, bit by bit.
struct CarrySave {
  uint64_t sum, carry;
};
inline CarrySave AddBits(uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t half = a ^ b;
  return {half ^ c, (a & b) | (half & c)};
}

// Adds eight words to bit-sliced ones, twos and fours; returns the carried eights.
inline uint64_t AddEight(uint64_t& ones, uint64_t& twos, uint64_t& fours, uint64_t x0, uint64_t x1,
                         uint64_t x2, uint64_t x3, uint64_t x4, uint64_t x5, uint64_t x6,
                         uint64_t x7) {
  const CarrySave a = AddBits(ones, x0, x1);
  const CarrySave b = AddBits(a.sum, x2, x3);
  const CarrySave c = AddBits(b.sum, x4, x5);
  const CarrySave d = AddBits(c.sum, x6, x7);
  const CarrySave ab = AddBits(twos, a.carry, b.carry);
  const CarrySave cd = AddBits(ab.sum, c.carry, d.carry);
  const CarrySave all = AddBits(fours, ab.carry, cd.carry);
  ones = d.sum;
  twos = cd.sum;
  fours = all.sum;
  return all.carry;
}

// Eight words a step as eight streams of kStreams neighbours, so that the compiler can keep
// neighbours in one register.
int64_t CountBits(const uint64_t* words, int64_t count) {
  constexpr int64_t kStreams = 4, kStep = 8 * kStreams;
  uint64_t ones[kStreams] = {}, twos[kStreams] = {}, fours[kStreams] = {};
  int64_t bits = 0;
  int64_t w = 0;
  for (; w + kStep <= count; w += kStep) {
    const uint64_t* x = words + w;
    int64_t eights = 0;
    for (int64_t k = 0; k < kStreams; ++k) {
      eights +=
          std::popcount(AddEight(ones[k], twos[k], fours[k], x[k], x[k + kStreams],
                                 x[k + 2 * kStreams], x[k + 3 * kStreams], x[k + 4 * kStreams],
                                 x[k + 5 * kStreams], x[k + 6 * kStreams], x[k + 7 * kStreams]));
    }
    bits += 8 * eights;
  }
  for (int64_t k = 0; k < kStreams; ++k) {
    bits += std::popcount(ones[k]) + 2 * std::popcount(twos[k]) + 4 * std::popcount(fours[k]);
  }
  for (; w < count; ++w) bits += std::popcount(words[w]);
  return bits;
}

// AddEight for every word of eight rows; carry(w, eights) takes what is carried out of word w.
template <typename Carry>
inline void AddEightRows(const EightRows& row, int64_t words, uint64_t* __restrict ones,
                         uint64_t* __restrict twos, uint64_t* __restrict fours, Carry&& carry) {
  const uint64_t* __restrict x0 = row[0];
  const uint64_t* __restrict x1 = row[1];
  const uint64_t* __restrict x2 = row[2];
  const uint64_t* __restrict x3 = row[3];
  const uint64_t* __restrict x4 = row[4];
  const uint64_t* __restrict x5 = row[5];
  const uint64_t* __restrict x6 = row[6];
  const uint64_t* __restrict x7 = row[7];
  for (int64_t w = 0; w < words; ++w) {
    carry(w, AddEight(ones[w], twos[w], fours[w], x0[w], x1[w], x2[w], x3[w], x4[w], x5[w], x6[w],
                      x7[w]));
  }
}

// The lanes' masks laid over each other: one counter per word, eight lanes a step.
struct OverLanes {
  explicit OverLanes(int64_t words)
      : ones(static_cast<size_t>(words)),
        twos(ones.size()),
        fours(ones.size()),
        bits(ones.size()) {}

  void Add(const EightRows& lane) {
    int64_t* __restrict bit = bits.data();
    AddEightRows(lane, static_cast<int64_t>(ones.size()), ones.data(), twos.data(), fours.data(),
                 [bit](int64_t w, uint64_t eights) { bit[w] += 8 * std::popcount(eights); });
  }

  void Finish() {
    for (size_t w = 0; w < bits.size(); ++w) {
      bits[w] += std::popcount(ones[w]) + 2 * std::popcount(twos[w]) + 4 * std::popcount(fours[w]);
    }
  }

  std::vector<uint64_t> ones, twos, fours;
  std::vector<int64_t> bits;  // set bits of a word, over all lanes
};

}  // namespace

std::vector<int64_t> CountLanes(const BlockMask& mask) {
  std::vector<int64_t> kept(static_cast<size_t>(mask.LaneCount()));
  const int64_t words = mask.QBlocks() * mask.WordsPerRow();
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    if (words < kFewWords) {
      int32_t count = 0;
      CountBitsOfRows(mask.Row(lane, 0).data(), 1, words, &count);
      kept[static_cast<size_t>(lane)] = count;
    } else {
      kept[static_cast<size_t>(lane)] = CountBits(mask.Row(lane, 0).data(), words);
    }
  }
  return kept;
}

std::vector<int64_t> CountRows(const BlockMask& mask) {
  const int64_t lanes = mask.LaneCount(), rows = mask.QBlocks(), words = mask.WordsPerRow();
  OverLanes sum(rows * words);
  const std::vector<uint64_t> zeros(lanes % 8 == 0 ? 0 : static_cast<size_t>(rows * words));
  for (int64_t first = 0; first < lanes; first += 8) {
    EightRows lane;
    for (int64_t k = 0; k < 8; ++k) {
      lane[static_cast<size_t>(k)] =
          first + k < lanes ? mask.Row(first + k, 0).data() : zeros.data();
    }
    sum.Add(lane);
  }
  sum.Finish();
  std::vector<int64_t> kept(static_cast<size_t>(rows));
  const int64_t* bits = sum.bits.data();
  for (int64_t& row : kept) {
    for (int64_t w = 0; w < words; ++w) row += *bits++;
  }
  return kept;
}

std::vector<uint16_t> SumLanes(const BlockMask& mask, std::span<const int32_t> lanes) {
  const int64_t rows = mask.QBlocks(), columns = mask.KvBlocks();
  std::vector<uint16_t> sums(static_cast<size_t>(rows * columns));
  std::vector<int32_t> row_of_lane(lanes.size()), counts(static_cast<size_t>(columns));
  ColumnCounter counter(mask.WordsPerRow());
  for (int64_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < lanes.size(); ++k) {
      row_of_lane[k] = static_cast<int32_t>(lanes[k] * rows + i);
    }
    std::fill(counts.begin(), counts.end(), 0);
    counter.AddRows(mask.Words().data(), row_of_lane);
    counter.Drain(counts);
    uint16_t* out = sums.data() + i * columns;
    for (int64_t j = 0; j < columns; ++j) {
      out[j] = static_cast<uint16_t>(std::min(counts[static_cast<size_t>(j)], 65535));
    }
  }
  return sums;
}

void ColumnCounter::AddRows(const uint64_t* base, std::span<const int32_t> rows) {
  switch (words_) {
    case 1:
      return AddRowsOf<1>(base, rows);
    case 2:
      return AddRowsOf<2>(base, rows);
    default:
      return AddRowsOf<0>(base, rows);
  }
}

template <int64_t kWords>
void ColumnCounter::AddRowsOf(const uint64_t* base, std::span<const int32_t> rows) {
  const int64_t words = kWords > 0 ? kWords : words_;
  size_t next = 0;
  const auto take = [&](EightRows& eight, size_t from, size_t count) {
    for (size_t k = 0; k < count; ++k) eight[from + k] = base + rows[next + k] * words;
    next += count;
  };
  if (pending_count_ > 0) {
    const size_t count = std::min(rows.size(), 8 - pending_count_);
    take(pending_, pending_count_, count);
    pending_count_ += count;
    if (pending_count_ < 8) return;
    Fold<kWords>(pending_);
  }
  while (next + 8 <= rows.size()) {
    EightRows eight;
    take(eight, 0, 8);
    Fold<kWords>(eight);
  }
  pending_count_ = rows.size() - next;
  take(pending_, 0, pending_count_);
}

template <int64_t kWords>
inline void ColumnCounter::Fold(const EightRows& row) {
  const int64_t words = kWords > 0 ? kWords : words_;
  uint64_t* ones = planes_.data();
  uint64_t* __restrict carried = carried_.data();
  AddEightRows(row, words, ones, ones + words, ones + 2 * words,
               [carried](int64_t w, uint64_t eights) { carried[w] = eights; });
  for (int64_t b = 0; b < 8; ++b) {
    uint64_t* __restrict bytes = bytes_.data() + b * words;
    for (int64_t w = 0; w < words; ++w) bytes[w] += (carried[w] >> b) & kByteOnes;
  }
  if (++folds_ == 255) FlushBytes();
}

void ColumnCounter::FlushBytes() {
  eights_.resize(static_cast<size_t>(words_ * 64));
  for (int64_t w = 0; w < words_; ++w) {
    int32_t* eights = eights_.data() + 64 * w;
    for (int64_t b = 0; b < 8; ++b) {
      const uint64_t packed = bytes_[static_cast<size_t>(b * words_ + w)];
      for (int64_t t = 0; t < 8; ++t) {
        eights[8 * t + b] += static_cast<int32_t>((packed >> (8 * t)) & 255);
      }
    }
  }
  std::fill(bytes_.begin(), bytes_.end(), 0);
  folds_ = 0;
}

void ColumnCounter::Drain(std::span<int32_t> counts) {
  if (pending_count_ > 0) {
    zeros_.resize(static_cast<size_t>(words_));
    std::fill(pending_.begin() + static_cast<int64_t>(pending_count_), pending_.end(),
              zeros_.data());
    Fold<0>(pending_);
    pending_count_ = 0;
  }
  FlushBytes();
  const int64_t columns = static_cast<int64_t>(counts.size());
  for (int64_t w = 0; w * 64 < columns; ++w) {
    const uint64_t* plane = planes_.data() + w;
    int32_t* eights = eights_.data() + 64 * w;
    for (int64_t b = 0; b < 8; ++b) {
      const uint64_t low = ((plane[0] >> b) & kByteOnes) + 2 * ((plane[words_] >> b) & kByteOnes) +
                           4 * ((plane[2 * words_] >> b) & kByteOnes);
      for (int64_t t = 0; t < 8; ++t) {
        int32_t& count = eights[8 * t + b];
        count = 8 * count + static_cast<int32_t>((low >> (8 * t)) & 255);
      }
    }
    const int64_t used = std::min<int64_t>(64, columns - w * 64);
    for (int64_t j = 0; j < used; ++j) counts[static_cast<size_t>(w * 64 + j)] += eights[j];
  }
  std::fill(planes_.begin(), planes_.end(), 0);
  std::fill(eights_.begin(), eights_.end(), 0);
}

}  // namespace equitile
