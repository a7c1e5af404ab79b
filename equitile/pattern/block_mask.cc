#include "equitile/pattern/block_mask.h"

#include "equitile/base/error.h"

namespace equitile {

void SetBits(std::span<uint64_t> row, Range bits) {
  for (int64_t w = bits.begin >> 6; w << 6 < bits.end; ++w) {
    uint64_t word = ~uint64_t{0};
    if (w == bits.begin >> 6) word &= ~uint64_t{0} << (bits.begin & 63);
    if (bits.end - (w << 6) < 64) word &= (uint64_t{1} << (bits.end - (w << 6))) - 1;
    row[static_cast<size_t>(w)] |= word;
  }
}

BlockMask::BlockMask(Lanes lanes, BlockGrid grid) : lanes_(lanes), grid_(grid) {
  CheckBlockGrid(grid);  // before anything is divided by the block size
  if (lanes.batch <= 0 || lanes.heads <= 0) {
    throw InputError("[pattern] batch {} and heads {}: both must be positive", lanes.batch,
                     lanes.heads);
  }
  q_blocks_ = grid.QBlocks();
  kv_blocks_ = grid.KvBlocks();
  words_per_row_ = CeilDiv(kv_blocks_, 64);
  words_.resize(static_cast<size_t>(lanes.Count() * q_blocks_ * words_per_row_));
}

BlockMask BlockMask::Dense(Lanes lanes, BlockGrid grid) {
  BlockMask mask(lanes, grid);
  const int64_t tail_bits = mask.kv_blocks_ & 63;
  const uint64_t tail = tail_bits == 0 ? ~uint64_t{0} : (uint64_t{1} << tail_bits) - 1;
  for (size_t i = 0; i < mask.words_.size(); ++i) {
    const bool last = (static_cast<int64_t>(i) + 1) % mask.words_per_row_ == 0;
    mask.words_[i] = last ? tail : ~uint64_t{0};
  }
  return mask;
}

void BlockMask::SetRange(int64_t lane, int64_t q_block, Range kv_blocks) {
  SetBits(MutableRow(lane, q_block), kv_blocks);
}

int64_t BlockMask::RowCount(int64_t lane, int64_t q_block) const {
  int64_t count = 0;
  for (uint64_t word : Row(lane, q_block)) count += std::popcount(word);
  return count;
}

int64_t BlockMask::LaneKept(int64_t lane) const {
  const size_t words = static_cast<size_t>(q_blocks_ * words_per_row_);
  int64_t count = 0;
  for (uint64_t word : std::span(words_).subspan(RowOffset(lane, 0), words))
    count += std::popcount(word);
  return count;
}

int64_t BlockMask::Kept() const {
  int64_t count = 0;
  for (uint64_t word : words_) count += std::popcount(word);
  return count;
}

double BlockMask::Density() const {
  const int64_t all = lanes_.Count() * q_blocks_ * kv_blocks_;
  return all == 0 ? 0.0 : static_cast<double>(Kept()) / static_cast<double>(all);
}

std::vector<int32_t> BlockMask::KeptInRow(int64_t lane, int64_t q_block) const {
  std::vector<int32_t> kept;
  kept.reserve(static_cast<size_t>(RowCount(lane, q_block)));
  ForEachKept(lane, q_block,
              [&](int64_t kv_block) { kept.push_back(static_cast<int32_t>(kv_block)); });
  return kept;
}

}  // namespace equitile
