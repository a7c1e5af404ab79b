#include "equitile/sparsity/error/block_errors.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/range.h"

namespace equitile {
namespace {

constexpr int64_t kBlocksAtOnce = 8;  // that a thread packs

int64_t SampledOf(int64_t tokens, int64_t rows) { return std::min(tokens, rows); }

// Every `step`th position from `first` on. Where the last block is too short for one, its last
// token stands there again: no block is empty.
void TakePart(int64_t first, int64_t step, std::vector<int32_t>& tokens, LaneKeys& keys) {
  EQ_CHECK(keys.grid.block_tokens % (step * kStripTokens) == 0, "one in {} of blocks of {} tokens",
           step, keys.grid.block_tokens);
  const int64_t all = keys.grid.kv_tokens;
  tokens.clear();
  for (int64_t i = first; i < first + RoundUp(all, step); i += step)
    tokens.push_back(keys.token_at_position[std::min(i, all - 1)]);
  keys.token_at_position = tokens.data();
  keys.grid.kv_tokens = std::ssize(tokens);
  keys.grid.block_tokens /= step;
}

}  // namespace

std::vector<int64_t> SampledPositions(const BlockGrid& grid, int64_t rows) {
  std::vector<int64_t> positions;
  for (int64_t block = 0; block < grid.QBlocks(); ++block) {
    const Range tokens = grid.QBlockTokens(block);
    const int64_t count = SampledOf(tokens.size(), rows);
    for (int64_t i = 0; i < count; ++i)
      positions.push_back(tokens.begin + (2 * i + 1) * tokens.size() / (2 * count));
  }
  return positions;
}

void BlockErrors::Begin(Lane lane, int64_t rows) {
  lane_ = std::move(lane);
  rows_ = rows;
  const BlockGrid& grid = lane_.keys.grid;
  parts_.resize(static_cast<size_t>(lane_.key_step));
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.keys = lane_.keys;
    TakePart(static_cast<int64_t>(i), lane_.key_step, part.token_at_position, part.keys);
    const int64_t dim = part.keys.head_dim;
    part.packed.Resize(part.keys.grid, dim, lane_.value_dims == 0 ? dim : lane_.value_dims);
  }
  errors_.assign(static_cast<size_t>(grid.QBlocks() * grid.KvBlocks()), 0);
  squares_.assign(static_cast<size_t>(grid.QBlocks()), 0);
  first_row_.assign(1, 0);
  for (int64_t block = 0; block < grid.QBlocks(); ++block)
    first_row_.push_back(first_row_.back() + SampledOf(grid.QBlockTokens(block).size(), rows));
  EQ_CHECK(first_row_.back() == std::ssize(lane_.queries), "{} queries for {} rows",
           lane_.queries.size(), first_row_.back());
}

double BlockErrors::Squares() const {
  return std::accumulate(squares_.begin(), squares_.end(), 0.0);
}

std::vector<float> BlockErrors::ErrorsOf(std::span<const int64_t> q_blocks) const {
  const int64_t kv_blocks = lane_.keys.grid.KvBlocks();
  std::vector<float> some;
  for (const int64_t block : q_blocks) {
    const auto first = errors_.begin() + block * kv_blocks;
    some.insert(some.end(), first, first + kv_blocks);
  }
  return some;
}

int64_t BlockErrors::Bytes() const {
  auto bytes = static_cast<int64_t>(errors_.capacity() * sizeof(float));
  for (const Part& part : parts_) bytes += part.packed.Bytes();
  return bytes;
}

int64_t BlockErrors::RowsAtOnce() const {
  return std::max<int64_t>(1, BlockPartials::kMostRows * lane_.key_step / rows_);
}

void BlockErrors::Judge(std::span<const int64_t> q_blocks, BlockPartials& partials) {
  const BlockGrid& grid = lane_.keys.grid;
  std::vector<const float*> queries;
  std::vector<JudgedRow> rows;
  std::vector<int64_t> block_of;
  const auto flush = [&](const Part& part) {
    if (rows.empty()) return;
    partials.Compute(part.packed, queries, lane_.scale);
    partials.AddErrors(part.packed, lane_.tail, rows);
    for (size_t i = 0; i < rows.size(); ++i)
      squares_[static_cast<size_t>(block_of[i])] += double{rows[i].weight} * double{rows[i].square};
    queries.clear();
    rows.clear();
    block_of.clear();
  };
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (const int64_t block : q_blocks) {
      const auto b = static_cast<size_t>(block);
      const auto first = static_cast<size_t>(first_row_[b]);
      const auto count = static_cast<size_t>(first_row_[b + 1]) - first;
      for (size_t row = part; row < count; row += parts_.size()) {
        queries.push_back(lane_.queries[first + row]);
        rows.push_back({.weight = static_cast<float>(grid.QBlockTokens(block).size()) /
                                  static_cast<float>(count),
                        .errors = errors_.data() + block * grid.KvBlocks()});
        block_of.push_back(block);
        if (std::ssize(rows) == BlockPartials::kMostRows) flush(parts_[part]);
      }
    }
    flush(parts_[part]);
  }
}

BlockJudge::BlockJudge(ThreadPool& pool)
    : pool_(pool), partials_(static_cast<size_t>(pool.Threads())) {}

int64_t BlockJudge::Bytes() const {
  int64_t bytes = 0;
  for (const BlockPartials& one : partials_) bytes += one.Bytes();
  return bytes;
}

void BlockJudge::Deal(int64_t tasks, int thread, FunctionRef<void(int64_t task, int thread)> task) {
  if (thread == kAllThreads) {
    pool_.ParallelFor(tasks, task);
  } else {
    for (int64_t i = 0; i < tasks; ++i) {
      task(i, thread);
      if (thread == 0) pool_.Poll();
    }
  }
}

void BlockJudge::Pack(std::span<BlockErrors* const> lanes, int thread) {
  if (lanes.empty()) return;
  const int64_t blocks = lanes[0]->lane_.keys.grid.KvBlocks();
  const int64_t parts = CeilDiv(blocks, kBlocksAtOnce);
  Deal(std::ssize(lanes) * parts, thread, [&](int64_t task, int) {
    BlockErrors& lane = *lanes[static_cast<size_t>(task / parts)];
    const int64_t first = task % parts * kBlocksAtOnce;
    for (BlockErrors::Part& part : lane.parts_)
      part.packed.Pack(part.keys, {first, std::min(first + kBlocksAtOnce, blocks)});
  });
}

void BlockJudge::Judge(std::span<BlockErrors* const> lanes, std::span<const int64_t> q_blocks,
                       int thread) {
  if (lanes.empty() || q_blocks.empty()) return;
  const int64_t at_once = lanes[0]->RowsAtOnce();
  const int64_t parts = CeilDiv(std::ssize(q_blocks), at_once);
  Deal(std::ssize(lanes) * parts, thread, [&](int64_t task, int who) {
    const auto first = static_cast<size_t>(task % parts * at_once);
    const size_t count = std::min(static_cast<size_t>(at_once), q_blocks.size() - first);
    lanes[static_cast<size_t>(task / parts)]->Judge(q_blocks.subspan(first, count),
                                                    partials_[static_cast<size_t>(who)]);
  });
}

int64_t BlocksNeeded(std::span<const float> errors, double allowed) {
  std::vector<float> sorted(errors.begin(), errors.end());
  std::ranges::sort(sorted);
  double left = 0;
  int64_t out = 0;
  while (out < std::ssize(sorted) && left + double{sorted[static_cast<size_t>(out)]} <= allowed)
    left += double{sorted[static_cast<size_t>(out++)]};
  return std::ssize(sorted) - out;
}

}  // namespace equitile
