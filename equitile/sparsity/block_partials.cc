#include "equitile/sparsity/block_partials.h"

#include <algorithm>
#include <cmath>

#include "equitile/kernel/attention.h"

namespace equitile {

// Every block is a lane of its own to the kernel; a ragged one is a call of its own.
void BlockPartials::Compute(const LaneKeys& keys, std::span<const float> queries,
                            ThreadPool& pool) {
  const BlockGrid& grid = keys.grid;
  const int64_t dim = keys.head_dim, block_tokens = grid.block_tokens;
  head_dim_ = dim;
  rows_ = std::ssize(queries) / dim;
  blocks_ = grid.KvBlocks();
  full_ = grid.kv_tokens / block_tokens;
  out_.resize(static_cast<size_t>(rows_ * full_ * dim));
  last_out_.resize(static_cast<size_t>(full_ < blocks_ ? rows_ * dim : 0));
  lse_.resize(static_cast<size_t>(rows_ * blocks_));
  const auto run = [&](int64_t first, int64_t count, int64_t tokens, float* out) {
    if (count == 0 || rows_ == 0) return;
    const auto q = [&](int64_t, int64_t row, int64_t n, float* to) {
      std::copy_n(queries.data() + row * dim, n * dim, to);
    };
    const auto rows_of = [&](auto at) {
      return [=](int64_t lane, int64_t token, int64_t n, float* to) {
        for (int64_t i = 0; i < n; ++i)
          std::copy_n(at((first + lane) * block_tokens + token + i), dim, to + i * dim);
      };
    };
    const auto k = rows_of([&](int64_t position) { return keys.KeyAt(position); });
    const auto v = rows_of([&](int64_t position) { return keys.ValueAt(position); });
    AttentionArgs args;
    args.lanes = {.batch = 1, .heads = count};
    args.grid = {.q_tokens = rows_, .kv_tokens = tokens, .block_tokens = block_tokens};
    args.head_dim = dim;
    args.scale = keys.scale;
    const AttentionRows all = AttentionRows::Dense(args.lanes, args.grid);
    args.rows = &all;
    args.q = TokenSource(RowProducer(q));
    args.k = TokenSource(RowProducer(k));
    args.v = TokenSource(RowProducer(v));
    args.out = View(out, {1, rows_, count, dim});
    args.lse = lse_.data() + first * rows_;
    Attention(args, pool, workspace_);
  };
  run(0, full_, block_tokens, out_.data());
  run(full_, blocks_ - full_, grid.kv_tokens - full_ * block_tokens, last_out_.data());
}

double BlockPartials::Shares(int64_t row, std::span<float> shares) const {
  float most = -INFINITY;
  double sum = 0;
  for (int64_t j = 0; j < blocks_; ++j) most = std::max(most, LogSum(row, j));
  for (int64_t j = 0; j < blocks_; ++j) {
    shares[static_cast<size_t>(j)] = std::exp(LogSum(row, j) - most);
    sum += double{shares[static_cast<size_t>(j)]};
  }
  const auto scale = static_cast<float>(1 / sum);
  for (float& share : shares) share *= scale;
  return double{most} + std::log(sum);
}

}  // namespace equitile
