#include "equitile/sparsity/block_errors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "equitile/base/range.h"
#include "equitile/kernel/block_means.h"

namespace equitile {
namespace {

constexpr int64_t kRowsAtOnce = 256;  // partial outputs that are held at a time

int64_t SampledOf(int64_t tokens, int64_t rows) { return std::min(tokens, rows); }

// [kv blocks][head_dim] of keys and of values.
struct Means {
  std::vector<float> k, v;
};

std::vector<float> MeansOf(const LaneKeys& keys, const float* rows) {
  const int64_t dim = keys.head_dim;
  const TokenSource source(ConstView(rows, {1, keys.grid.kv_tokens, 1, dim}));
  std::vector<float> means(static_cast<size_t>(keys.grid.KvBlocks() * dim));
  BlockMeans({.source = &source,
              .lanes = {.batch = 1, .heads = 1},
              .lane = 0,
              .grid = keys.grid,
              .head_dim = dim,
              .token_at_position = keys.token_at_position,
              .blocks = {0, keys.grid.KvBlocks()},
              .stride = dim},
             means.data());
  return means;
}

// What a thread needs for one query.
struct Scratch {
  std::vector<float> shares;  // [kv blocks]
  std::vector<float> output;  // [head_dim]
};

// One query: adds weight * errors to `errors` [kv blocks], and returns the square of its output.
// With o_j and p_j the output and share of block j, O = sum p_j o_j, and ^p_j, ^o_j those of its
// mean: leaving j out moves O by  p_j (o_j - O) - ^p_j (^o_j - O),  to first order.
double AddErrors(const LaneKeys& keys, const BlockPartials& partials, const Means& means,
                 int64_t row, const float* query, double weight, float* errors, Scratch& scratch) {
  const int64_t dim = keys.head_dim;
  scratch.shares.resize(static_cast<size_t>(partials.Blocks()));
  scratch.output.assign(static_cast<size_t>(dim), 0);
  const double log_sum = partials.Shares(row, scratch.shares);
  float* whole = scratch.output.data();
  for (int64_t j = 0; j < partials.Blocks(); ++j) {
    const float p = scratch.shares[static_cast<size_t>(j)];
    const float* o = partials.Output(row, j);
    for (int64_t i = 0; i < dim; ++i) whole[i] += p * o[i];
  }
  for (int64_t j = 0; j < partials.Blocks(); ++j) {
    const float p = scratch.shares[static_cast<size_t>(j)];
    const float *o = partials.Output(row, j), *mean = whole;
    float mean_p = 0;
    if (!means.k.empty()) {
      const float* key = means.k.data() + j * dim;
      float dot = 0;
      for (int64_t i = 0; i < dim; ++i) dot += query[i] * key[i];
      mean_p = static_cast<float>(static_cast<double>(keys.grid.KvBlockTokens(j).size()) *
                                  std::exp(double{keys.scale} * double{dot} - log_sum));
      mean = means.v.data() + j * dim;
    }
    float square = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const float moved = p * (o[i] - whole[i]) - mean_p * (mean[i] - whole[i]);
      square += moved * moved;
    }
    errors[j] += static_cast<float>(weight) * square;
  }
  return std::inner_product(whole, whole + dim, whole, 0.0);
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

BlockErrors ErrorsOf(const LaneKeys& keys, std::span<const float> queries, int64_t rows, Tail tail,
                     ThreadPool& pool, BlockPartials& partials) {
  const BlockGrid& grid = keys.grid;
  const int64_t dim = keys.head_dim, q_blocks = grid.QBlocks(), kv_blocks = grid.KvBlocks();
  Means means;
  if (tail == Tail::kMean) means = {MeansOf(keys, keys.k), MeansOf(keys, keys.v)};
  BlockErrors found;
  found.errors.assign(static_cast<size_t>(q_blocks * kv_blocks), 0);
  std::vector<double> squares(static_cast<size_t>(q_blocks), 0);
  std::vector<Scratch> scratch(static_cast<size_t>(pool.Threads()));
  const int64_t at_once = std::max<int64_t>(1, kRowsAtOnce / rows);
  for (int64_t first = 0, row = 0; first < q_blocks; first += at_once) {
    const int64_t end = std::min(first + at_once, q_blocks);
    std::vector<int64_t> begin{0};  // of each block's rows
    for (int64_t block = first; block < end; ++block)
      begin.push_back(begin.back() + SampledOf(grid.QBlockTokens(block).size(), rows));
    const std::span<const float> some =
        queries.subspan(static_cast<size_t>(row * dim), static_cast<size_t>(begin.back() * dim));
    row += begin.back();
    partials.Compute(keys, some, pool);
    pool.ParallelFor(end - first, [&](int64_t i, int thread) {
      const auto index = static_cast<size_t>(i);
      const int64_t block = first + i, count = begin[index + 1] - begin[index];
      const double weight =
          static_cast<double>(grid.QBlockTokens(block).size()) / static_cast<double>(count);
      for (int64_t r = begin[index]; r < begin[index + 1]; ++r) {
        squares[static_cast<size_t>(block)] +=
            weight * AddErrors(keys, partials, means, r, some.data() + r * dim, weight,
                               found.errors.data() + block * kv_blocks,
                               scratch[static_cast<size_t>(thread)]);
      }
    });
  }
  found.squares = std::accumulate(squares.begin(), squares.end(), 0.0);
  return found;
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
