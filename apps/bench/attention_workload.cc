#include "apps/bench/attention_workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"

namespace equitile {
namespace {

// Numbers per task when filling: long enough to hide the hand-out.
constexpr int64_t kFillElements = 1 << 16;
// Multiply-adds in double that the check may spend, about a second on one core, and the most rows
// it looks at; but never fewer than kMinRows.
constexpr double kCheckOperations = 1e9;
constexpr int64_t kMinRows = 3, kMaxRows = 64;

Tensor RandomTensor(DType dtype, const Shape& shape, uint64_t seed, uint32_t stream,
                    ThreadPool& pool) {
  Tensor tensor(dtype, shape);
  const int64_t elements = shape.Elements();
  const View flat = tensor.view().Reshape({elements});
  const Rng rng(seed, stream);
  const float width = std::sqrt(12.0f);  // variance 1
  pool.ParallelFor(CeilDiv(elements, kFillElements), [&](int64_t task, int) {
    const int64_t begin = task * kFillElements;
    for (int64_t i = begin; i < std::min(elements, begin + kFillElements); ++i)
      flat.Store((rng.UniformAt(static_cast<uint64_t>(i)) - 0.5f) * width, i);
  });
  return tensor;
}

// `count` blocks of each row.
BlockMask MaskOfRows(Lanes lanes, const BlockGrid& grid, int64_t count, uint64_t seed) {
  BlockMask mask(lanes, grid);
  Rng rng(seed, 17);
  std::vector<int64_t> blocks(static_cast<size_t>(mask.KvBlocks()));
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    for (int64_t q_block = 0; q_block < mask.QBlocks(); ++q_block) {
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        std::swap(blocks[i], blocks[i + rng.Below(blocks.size() - i)]);
        mask.Set(lane, q_block, blocks[i]);
      }
    }
  }
  return mask;
}

}  // namespace

BlockMask RandomRowMask(Lanes lanes, const BlockGrid& grid, double density, uint64_t seed) {
  const double count = std::round(density * static_cast<double>(grid.KvBlocks()));
  return MaskOfRows(lanes, grid, std::max<int64_t>(1, static_cast<int64_t>(count)), seed);
}

BlockMask OneBlockMask(Lanes lanes, const BlockGrid& grid, uint64_t seed) {
  return MaskOfRows(lanes, grid, 1, seed);
}

AttentionWorkload::AttentionWorkload(const BlockMask& mask, const Options& options,
                                     ThreadPool& pool)
    : rows_(AttentionRows::FromMask(mask)) {
  const Lanes lanes = mask.lanes();
  const BlockGrid grid = mask.grid();
  const Shape q_shape = {lanes.batch, grid.q_tokens, lanes.heads, options.head_dim},
              kv_shape = {lanes.batch, grid.kv_tokens, lanes.heads, options.head_dim};
  q_ = RandomTensor(options.dtype, q_shape, options.seed, 0, pool);
  k_ = RandomTensor(options.dtype, kv_shape, options.seed, 1, pool);
  v_ = RandomTensor(options.dtype, kv_shape, options.seed, 2, pool);
  out_ = Tensor(options.dtype, q_shape);
  lse_.resize(static_cast<size_t>(lanes.Count() * grid.q_tokens));
  for (const TokenOrder order : options.orders) {
    const auto [entry, is_new] = order_maps_.try_emplace(order);
    if (is_new) entry->second = TokenAtPosition(options.token_grid, order);
    orders_.push_back(order == options.token_grid.home ? nullptr : entry->second.data());
  }
  args_ = {.lanes = lanes,
           .grid = grid,
           .head_dim = options.head_dim,
           .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(options.head_dim))),
           .rows = &rows_,
           .q = ConstView(q_),
           .k = ConstView(k_),
           .v = ConstView(v_),
           .q_order = orders_,
           .kv_order = orders_,
           .compute = options.compute,
           .k_center = {},
           .bias = {},
           .out = out_,
           .lse = lse_.data(),
           .poll = {}};
}

double AttentionWorkload::Flops() const {
  double pairs = 0.0;
  for (int64_t row = 0; row < rows_.Count(); ++row) {
    int64_t keys = 0;
    for (int32_t block : rows_.KvBlocks(row)) keys += args_.grid.KvBlockTokens(block).size();
    const int64_t q_block = rows_.rows[static_cast<size_t>(row)].q_block;
    pairs += static_cast<double>(keys * args_.grid.QBlockTokens(q_block).size());
  }
  return 4.0 * static_cast<double>(args_.head_dim) * pairs;
}

std::vector<int64_t> AttentionWorkload::SampleRows() const {
  int64_t heaviest = 0;
  for (int64_t row = 1; row < rows_.Count(); ++row) {
    if (rows_.KvBlocks(row).size() > rows_.KvBlocks(heaviest).size()) heaviest = row;
  }
  const double row_operations = 0.5 * Flops() / static_cast<double>(rows_.Count());
  const auto wanted = static_cast<int64_t>(
      std::clamp(kCheckOperations / std::max(row_operations, 1.0), static_cast<double>(kMinRows),
                 static_cast<double>(kMaxRows)));
  std::vector<int64_t> sample = {heaviest, rows_.Count() - 1};
  for (int64_t i = 0; i < wanted - 2; ++i)
    sample.push_back(EvenPart(rows_.Count(), i, wanted).begin);
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

AttentionError AttentionWorkload::Check(ThreadPool& pool) const {
  const std::vector<int64_t> sample = SampleRows();
  std::vector<AttentionError> errors(sample.size());
  pool.ParallelFor(static_cast<int64_t>(sample.size()), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    errors[at] = CompareWithReference(args_, std::span(&sample[at], 1));
  });
  const AttentionError& worst = *std::max_element(
      errors.begin(), errors.end(), [](const AttentionError& a, const AttentionError& b) {
        return a.worst_fraction < b.worst_fraction;
      });
  if (!(worst.worst_fraction <= 1.0)) {
    const AttentionRows::Row row = rows_.rows[static_cast<size_t>(worst.row)];
    throw Error(
        "[bench] wrong answer: lane {}, token {}, {}: off by {:.3g}, {:.3g} may be; nothing was "
        "timed",
        row.lane, worst.token,
        worst.dim < 0 ? std::string("log-sum-exp") : fmt::format("dim {}", worst.dim),
        worst.worst_fraction * worst.tolerance, worst.tolerance);
  }
  return worst;
}

}  // namespace equitile
