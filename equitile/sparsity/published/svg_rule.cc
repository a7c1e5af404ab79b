#include "equitile/sparsity/published/svg_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/sparsity/source/not_finite.h"

namespace equitile {
namespace {

// The row's output over the blocks that `keeps` lets through.
template <typename Keeps>
void RowOutput(const BlockPartials& partials, int64_t row, Keeps&& keeps,
               std::vector<double>& output) {
  double most = -INFINITY, sum = 0;
  for (int64_t block = 0; block < partials.Blocks(); ++block)
    if (keeps(block)) most = std::max<double>(most, partials.Log2Sum(row, block));
  std::ranges::fill(output, 0);
  for (int64_t block = 0; block < partials.Blocks(); ++block) {
    if (!keeps(block)) continue;
    const double weight = std::exp2(double{partials.Log2Sum(row, block)} - most);
    sum += weight;
    for (size_t i = 0; i < output.size(); ++i)
      output[i] += weight * double{partials.Output(row, block, static_cast<int64_t>(i))};
  }
  for (double& value : output) value /= sum;
}

// [tokens at home]: the block in which a token lies in this order.
std::vector<int64_t> BlockOfToken(const BlockMask& mask, std::span<const int32_t> at) {
  std::vector<int64_t> block(at.size());
  for (size_t p = 0; p < at.size(); ++p)
    block[static_cast<size_t>(at[p])] = static_cast<int64_t>(p) / mask.grid().block_tokens;
  return block;
}

double SquareError(const SvgSample& sample, const BlockMask& mask, const TokenGrid& grid,
                   TokenOrder order, ThreadPool& pool, SvgScratch& scratch) {
  const std::vector<int32_t> at = TokenAtPosition(grid, order);
  const std::vector<int64_t> block = BlockOfToken(mask, at);
  const size_t dim = sample.queries.size() / sample.tokens.size();
  const LaneKeys keys{.k = sample.keys.data(),
                      .v = sample.values.data(),
                      .token_at_position = at.data(),
                      .grid = mask.grid(),
                      .head_dim = static_cast<int64_t>(dim)};
  PackedLane& lane = scratch.lane;
  scratch.partials.resize(static_cast<size_t>(pool.Threads()));
  lane.Resize(keys.grid, keys.head_dim, keys.head_dim);
  pool.ParallelFor(mask.KvBlocks(), [&](int64_t j, int) { lane.Pack(keys, {j, j + 1}); });
  const int64_t rows = std::ssize(sample.tokens), at_once = BlockPartials::kMostRows;
  std::vector<double> errors(sample.tokens.size(), 0);
  pool.ParallelFor(CeilDiv(rows, at_once), [&](int64_t part, int thread) {
    const int64_t first = part * at_once, count = std::min(at_once, rows - first);
    std::vector<const float*> queries;
    for (int64_t i = 0; i < count; ++i)
      queries.push_back(sample.queries.data() + (first + i) * keys.head_dim);
    BlockPartials& partials = scratch.partials[static_cast<size_t>(thread)];
    partials.Compute(lane, queries, sample.scale);
    std::vector<double> whole(dim), sparse(dim);
    for (int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<size_t>(first + i);
      const int64_t q_block = block[static_cast<size_t>(sample.tokens[row])];
      RowOutput(
          partials, i, [](int64_t) { return true; }, whole);
      RowOutput(
          partials, i, [&](int64_t j) { return mask.Get(0, q_block, j); }, sparse);
      for (size_t d = 0; d < dim; ++d)
        errors[row] += (whole[d] - sparse[d]) * (whole[d] - sparse[d]);
    }
  });
  return std::accumulate(errors.begin(), errors.end(), 0.0);
}

}  // namespace

BlockMask SvgMask(const TokenGrid& grid, int64_t block_tokens, const SvgOptions& options) {
  if (!(options.density > 0 && options.density <= 1))
    throw InputError("[sparsity] density {}: must be above 0 and at most 1", options.density);
  const auto n = static_cast<double>(grid.Tokens());
  const double text = static_cast<double>(grid.text_before + grid.text_after);
  const double share = std::max(0.0, options.density - 2 * text / n);
  const int64_t width =
      RoundUp(static_cast<int64_t>(std::ceil(n * (1 - std::sqrt(1 - share)))), block_tokens);
  const int64_t sink_end = grid.text_before + grid.height * grid.width;
  BlockMask mask({1, 1}, {grid.Tokens(), grid.Tokens(), block_tokens});
  const int64_t video_end = grid.Tokens() - grid.text_after;
  for (int64_t q = 0; q < mask.QBlocks(); ++q) {
    const Range queries = mask.grid().QBlockTokens(q);
    const bool has_text = queries.begin < grid.text_before || queries.end > video_end;
    const auto keep = [&](int64_t begin, int64_t end) {
      begin = std::max<int64_t>(0, begin);
      end = std::min(grid.Tokens(), end);
      if (begin < end) mask.SetRange(0, q, {begin / block_tokens, CeilDiv(end, block_tokens)});
    };
    keep(0, has_text ? grid.Tokens() : sink_end);  // text before the video with the sink
    keep(queries.begin - width, queries.end + width);
    keep(video_end, grid.Tokens());
  }
  return mask;
}

std::vector<int64_t> SvgSampledTokens(const TokenGrid& grid, const SvgOptions& options) {
  if (options.sampled_rows < 1)
    throw InputError("[sparsity] {} sampled rows: must be at least 1", options.sampled_rows);
  const int64_t wanted = std::min(options.sampled_rows, grid.VideoTokens());
  std::set<int64_t> tokens;
  for (uint64_t draw = 0; std::ssize(tokens) < wanted; ++draw) {
    const uint64_t bits = Hasher().Add(options.seed).Add(draw).Digest();
    tokens.insert(grid.text_before +
                  static_cast<int64_t>(bits % static_cast<uint64_t>(grid.VideoTokens())));
  }
  return {tokens.begin(), tokens.end()};
}

TokenOrder ChooseSvgOrder(const SvgSample& sample, const BlockMask& mask, const TokenGrid& grid,
                          ThreadPool& pool, SvgScratch& scratch) {
  EQ_CHECK(mask.grid().q_tokens == grid.Tokens() && sample.keys.size() == sample.values.size());
  const double spatial = SquareError(sample, mask, grid, TokenOrder::kFHW, pool, scratch);
  const double temporal = SquareError(sample, mask, grid, TokenOrder::kHWF, pool, scratch);
  if (!std::isfinite(spatial) || !std::isfinite(temporal)) throw NotFinite();
  return temporal < spatial ? TokenOrder::kHWF : TokenOrder::kFHW;
}

}  // namespace equitile
