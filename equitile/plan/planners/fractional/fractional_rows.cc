#include "equitile/plan/planners/fractional/fractional_rows.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "equitile/base/bit_count.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

// A range costs at most two partial chunks of rows and all chunks: equal at the square root.
int64_t ChunkRows(int64_t q_blocks) {
  int64_t rows = 1;
  while (2 * rows * rows < q_blocks) ++rows;
  return rows;
}

void Unite(const uint64_t* from, int64_t words, uint64_t* into) {
  for (int64_t w = 0; w < words; ++w) into[w] |= from[w];
}

}  // namespace

RowTable::RowTable(const BlockMask& mask, std::span<const int32_t> row_blocks,
                   const CostModel& model)
    : mask_(mask),
      lanes_(mask.LaneCount()),
      q_blocks_(mask.QBlocks()),
      words_(mask.WordsPerRow()),
      chunk_rows_(ChunkRows(q_blocks_)),
      chunks_(CeilDiv(q_blocks_, chunk_rows_)),
      cost_(static_cast<size_t>(lanes_ * (q_blocks_ + 1))),
      busy_(static_cast<size_t>(lanes_ * (q_blocks_ + 1))),
      needed_(static_cast<size_t>(lanes_ * chunks_ * words_)),
      lane_columns_(static_cast<size_t>(lanes_)),
      chunk_columns_(static_cast<size_t>(lanes_)) {
  EQ_CHECK(static_cast<int64_t>(row_blocks.size()) == lanes_ * q_blocks_);
  std::vector<int32_t> columns(static_cast<size_t>(chunks_));
  std::vector<uint64_t> lane_needed(static_cast<size_t>(words_));
  const uint64_t* bits = mask.Words().data();
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    int64_t* cost = cost_.data() + lane * (q_blocks_ + 1);
    int32_t* busy = busy_.data() + lane * (q_blocks_ + 1);
    uint64_t* chunk = needed_.data() + lane * chunks_ * words_;
    for (int64_t begin = 0; begin < q_blocks_; begin += chunk_rows_, chunk += words_) {
      for (int64_t row = begin; row < std::min(begin + chunk_rows_, q_blocks_); ++row) {
        Unite(bits, words_, chunk);
        bits += words_;
        const int32_t blocks = row_blocks[static_cast<size_t>(lane * q_blocks_ + row)];
        const int64_t row_cost = model.Of(blocks);
        longest_row_ = std::max(longest_row_, row_cost);
        cost[row + 1] = cost[row] + row_cost;
        busy[row + 1] = busy[row] + (blocks > 0);
      }
    }
    const uint64_t* first = needed_.data() + lane * chunks_ * words_;
    CountBitsOfRows(first, chunks_, words_, columns.data());
    chunk_columns_[static_cast<size_t>(lane)] =
        static_cast<double>(std::accumulate(columns.begin(), columns.end(), int64_t{0})) /
        static_cast<double>(chunks_);
    std::fill(lane_needed.begin(), lane_needed.end(), 0);
    for (int64_t c = 0; c < chunks_; ++c) Unite(first + c * words_, words_, lane_needed.data());
    lane_columns_[static_cast<size_t>(lane)] = CountBits(lane_needed.data(), {0, words_ * 64});
  }
}

int64_t RowTable::EndNearest(int64_t lane, Range rows, int64_t cost) const {
  const int64_t* prefix = cost_.data() + lane * (q_blocks_ + 1);
  const int64_t wanted = prefix[rows.begin] + cost;
  const int64_t* above = std::lower_bound(prefix + rows.begin, prefix + rows.end, wanted);
  if (above == prefix + rows.begin) return rows.begin;
  const bool take_above = *above - wanted < wanted - *(above - 1);
  return (take_above ? above : above - 1) - prefix;
}

int64_t RowTable::BeginNearest(int64_t lane, Range rows, int64_t cost) const {
  const int64_t* prefix = cost_.data() + lane * (q_blocks_ + 1);
  const int64_t wanted = prefix[rows.end] - cost;
  const int64_t* above = std::lower_bound(prefix + rows.begin, prefix + rows.end, wanted);
  if (above == prefix + rows.begin) return rows.begin;
  const bool take_above = *above - wanted <= wanted - *(above - 1);
  return (take_above ? above : above - 1) - prefix;
}

int64_t RowTable::EndWithin(int64_t lane, Range rows, int64_t cost) const {
  const int64_t* prefix = cost_.data() + lane * (q_blocks_ + 1);
  const int64_t most = prefix[rows.begin] + cost;
  return std::upper_bound(prefix + rows.begin, prefix + rows.end + 1, most) - prefix - 1;
}

void RowTable::AddNeeded(int64_t lane, Range rows, uint64_t* needed) const {
  const uint64_t* bits = mask_.Words().data() + lane * q_blocks_ * words_;
  const uint64_t* chunks = needed_.data() + lane * chunks_ * words_;
  auto add_rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) Unite(bits + row * words_, words_, needed);
  };
  const int64_t first = CeilDiv(rows.begin, chunk_rows_);
  const int64_t last = rows.end == q_blocks_ ? chunks_ : rows.end / chunk_rows_;
  if (first >= last) return add_rows(rows.begin, rows.end);
  add_rows(rows.begin, first * chunk_rows_);
  for (int64_t c = first; c < last; ++c) Unite(chunks + c * words_, words_, needed);
  add_rows(std::min(last * chunk_rows_, rows.end), rows.end);
}

double RowTable::GuessColumns(int64_t lane, double rows) const {
  const double chunk = chunk_columns_[static_cast<size_t>(lane)];
  const double all = static_cast<double>(LaneColumns(lane));
  const double span = static_cast<double>(q_blocks_ - chunk_rows_);
  if (span <= 0) return all;
  return chunk + (all - chunk) * (rows - static_cast<double>(chunk_rows_)) / span;
}

int64_t CountBits(const uint64_t* words, Range bits) {
  if (bits.empty()) return 0;
  const int64_t first = bits.begin >> 6, last = (bits.end - 1) >> 6;
  const uint64_t low = ~uint64_t{0} << (bits.begin & 63);
  const uint64_t high = ~uint64_t{0} >> (63 - ((bits.end - 1) & 63));
  if (first == last) return std::popcount(words[first] & low & high);
  int64_t count = std::popcount(words[first] & low) + std::popcount(words[last] & high);
  for (int64_t w = first + 1; w < last; ++w) count += std::popcount(words[w]);
  return count;
}

}  // namespace equitile
