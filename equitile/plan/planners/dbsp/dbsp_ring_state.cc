#include "equitile/plan/planners/dbsp/dbsp_ring_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "equitile/plan/planners/dbsp/dbsp.h"
#include "equitile/plan/planners/dbsp/dbsp_counts.h"

namespace equitile {
namespace {

// [columns][rows] of a matrix [rows][columns], in tiles that fit the cache.
std::vector<uint16_t> Transposed(const std::vector<uint16_t>& matrix, int64_t rows,
                                 int64_t columns) {
  constexpr int64_t kTile = 32;
  std::vector<uint16_t> out(matrix.size());
  for (int64_t i0 = 0; i0 < rows; i0 += kTile) {
    const int64_t i1 = std::min(rows, i0 + kTile);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = i0; i < i1; ++i) {
        out[static_cast<size_t>(j * rows + i)] = matrix[static_cast<size_t>(i * columns + j)];
      }
    }
  }
  return out;
}

}  // namespace

RingState::RingState(const BlockMask& mask, std::span<const int32_t> lanes, int64_t ring)
    : ring_(ring) {
  key_.key = true;
  MakeSlots(query_, mask.QBlocks());
  MakeSlots(key_, mask.KvBlocks());
  query_.sums = SumLanes(mask, lanes);
  key_.sums = Transposed(query_.sums, query_.blocks, key_.blocks);
  CountAll();
}

void RingState::MakeSlots(BlockSide& side, int64_t blocks) {
  side.blocks = blocks;
  side.stride = blocks + BlockSide::kSpare;
  side.home.resize(static_cast<size_t>(side.stride));
  std::vector<int32_t> at_home;
  for (int64_t label = 0; label < ring_; ++label) {
    side.begin.push_back(static_cast<int64_t>(at_home.size()));
    const Range part = EvenPart(blocks, side.key ? NegatedRank(label, ring_) : label, ring_);
    for (int64_t i = part.begin; i < part.end; ++i) at_home.push_back(static_cast<int32_t>(i));
    side.label.resize(at_home.size(), static_cast<int32_t>(label));
  }
  side.begin.push_back(blocks);
  Fill(side, at_home);
}

void RingState::Fill(BlockSide& side, const std::vector<int32_t>& block) {
  side.block = block;
  const std::vector<int32_t> home = HomeOwners(side.blocks, ring_);
  for (size_t slot = 0; slot < block.size(); ++slot) {
    const int64_t rank = home[static_cast<size_t>(block[slot])];
    side.home[slot] = static_cast<int32_t>(side.key ? NegatedRank(rank, ring_) : rank);
  }
}

void RingState::Place(const std::vector<int32_t>& q_block, const std::vector<int32_t>& kv_block) {
  Fill(query_, q_block);
  Fill(key_, kv_block);
  CountAll();
}

void RingState::CountAll() {
  query_.count.assign(static_cast<size_t>(ring_ * query_.stride), 0);
  key_.count.assign(static_cast<size_t>(ring_ * key_.stride), 0);
  cells_.assign(static_cast<size_t>(ring_ * ring_), 0);
  total_ = 0;
  for (int64_t p = 0; p < query_.blocks; ++p) {
    const uint16_t* row = query_.sums.data() + query_.block[static_cast<size_t>(p)] * key_.blocks;
    const int64_t q_rank = query_.label[static_cast<size_t>(p)];
    float* at_key = key_.count.data() + NegatedRank(q_rank, ring_) * key_.stride;
    for (int64_t label = 0; label < ring_; ++label) {
      int64_t kept = 0;
      for (int64_t t = key_.begin[static_cast<size_t>(label)];
           t < key_.begin[static_cast<size_t>(label + 1)]; ++t) {
        const int64_t sum = row[key_.block[static_cast<size_t>(t)]];
        kept += sum;
        at_key[t] += static_cast<float>(sum);
      }
      const int64_t kv_rank = NegatedRank(label, ring_);
      query_.count[static_cast<size_t>(kv_rank * query_.stride + p)] = static_cast<float>(kept);
      cells_[static_cast<size_t>(q_rank * ring_ + (kv_rank - q_rank + ring_) % ring_)] += kept;
      total_ += kept;
    }
  }
}

int64_t RingState::Crit() const {
  int64_t crit = 0;
  for (int64_t s = 0; s < ring_; ++s) {
    int64_t largest = 0;
    for (int64_t r = 0; r < ring_; ++r) {
      largest = std::max(largest, cells_[static_cast<size_t>(r * ring_ + s)]);
    }
    crit += largest;
  }
  return crit;
}

int64_t RingState::Moved() const {
  int64_t moved = 0;
  for (const BlockSide* side : {&query_, &key_}) {
    for (size_t slot = 0; slot < side->label.size(); ++slot) {
      moved += side->home[slot] != side->label[slot];
    }
  }
  return moved;
}

double RingState::CellSpread() const {
  double squares = 0;
  for (int64_t s = 0; s < ring_; ++s) {
    double mean = 0;
    for (int64_t r = 0; r < ring_; ++r) {
      mean += static_cast<double>(cells_[static_cast<size_t>(r * ring_ + s)]);
    }
    mean /= static_cast<double>(ring_);
    for (int64_t r = 0; r < ring_; ++r) {
      const double off = static_cast<double>(cells_[static_cast<size_t>(r * ring_ + s)]) - mean;
      squares += off * off;
    }
  }
  return std::sqrt(squares) / static_cast<double>(ring_);
}

void RingState::Swap(const BlockSide& which, int64_t slot_a, int64_t slot_b) {
  BlockSide& side = which.key ? key_ : query_;
  BlockSide& across = which.key ? query_ : key_;
  const int64_t a = side.label[static_cast<size_t>(slot_a)];
  const int64_t b = side.label[static_cast<size_t>(slot_b)];
  for (int64_t x = 0; x < ring_; ++x) {
    float& count_a = side.count[static_cast<size_t>(x * side.stride + slot_a)];
    float& count_b = side.count[static_cast<size_t>(x * side.stride + slot_b)];
    const int64_t change = static_cast<int64_t>(count_b - count_a);
    cells_[CellIndex(side, a, (x - a + ring_) % ring_)] += change;
    cells_[CellIndex(side, b, (x - b + ring_) % ring_)] -= change;
    std::swap(count_a, count_b);
  }
  std::swap(side.block[static_cast<size_t>(slot_a)], side.block[static_cast<size_t>(slot_b)]);
  std::swap(side.home[static_cast<size_t>(slot_a)], side.home[static_cast<size_t>(slot_b)]);

  const auto sums = [&](int64_t slot) {
    return side.sums.data() + side.block[static_cast<size_t>(slot)] * across.blocks;
  };
  const uint16_t* now_a = sums(slot_a);
  const uint16_t* now_b = sums(slot_b);
  float* __restrict count_a = across.count.data() + NegatedRank(a, ring_) * across.stride;
  float* __restrict count_b = across.count.data() + NegatedRank(b, ring_) * across.stride;
  for (int64_t t = 0; t < across.blocks; ++t) {
    const int32_t block = across.block[static_cast<size_t>(t)];
    const float change = static_cast<float>(now_a[block] - now_b[block]);
    count_a[t] += change;
    count_b[t] -= change;
  }
}

}  // namespace equitile
