#include "equitile/sparsity/svg_rule.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"

namespace equitile {
namespace {

// softmax(scores) . values over the keys that `keeps` lets through.
template <typename Keeps>
void RowOutput(std::span<const float> scores, std::span<const float> values, Keeps&& keeps,
               std::vector<double>& output) {
  const size_t dim = values.size() / scores.size();
  double most = -INFINITY, sum = 0;
  for (size_t key = 0; key < scores.size(); ++key)
    if (keeps(key)) most = std::max<double>(most, scores[key]);
  output.assign(dim, 0);
  for (size_t key = 0; key < scores.size(); ++key) {
    if (!keeps(key)) continue;
    const double weight = std::exp(scores[key] - most);
    sum += weight;
    for (size_t i = 0; i < dim; ++i) output[i] += weight * values[key * dim + i];
  }
  for (double& value : output) value /= sum;
}

// [tokens at home]: the block in which a token lies in this order.
std::vector<int64_t> BlockOfToken(const BlockMask& mask, const TokenGrid& grid, TokenOrder order) {
  const std::vector<int32_t> at = TokenAtPosition(grid, order);
  std::vector<int64_t> block(at.size());
  for (size_t p = 0; p < at.size(); ++p)
    block[static_cast<size_t>(at[p])] = static_cast<int64_t>(p) / mask.grid().block_tokens;
  return block;
}

double SquareError(const SvgSample& sample, const BlockMask& mask, const TokenGrid& grid,
                   TokenOrder order) {
  const std::vector<int64_t> block = BlockOfToken(mask, grid, order);
  std::vector<double> whole, sparse;
  double error = 0;
  for (size_t row = 0; row < sample.tokens.size(); ++row) {
    const int64_t q_block = block[static_cast<size_t>(sample.tokens[row])];
    const auto scores = sample.scores.subspan(row * block.size(), block.size());
    RowOutput(
        scores, sample.values, [](size_t) { return true; }, whole);
    RowOutput(
        scores, sample.values, [&](size_t key) { return mask.Get(0, q_block, block[key]); },
        sparse);
    for (size_t i = 0; i < whole.size(); ++i)
      error += (whole[i] - sparse[i]) * (whole[i] - sparse[i]);
  }
  return error;
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

TokenOrder ChooseSvgOrder(const SvgSample& sample, const BlockMask& mask, const TokenGrid& grid) {
  const auto rows = static_cast<int64_t>(sample.tokens.size());
  EQ_CHECK(std::ssize(sample.scores) == rows * grid.Tokens() &&
           mask.grid().q_tokens == grid.Tokens());
  const double spatial = SquareError(sample, mask, grid, TokenOrder::kFHW);
  const double temporal = SquareError(sample, mask, grid, TokenOrder::kHWF);
  if (!std::isfinite(spatial) || !std::isfinite(temporal))
    throw InputError(
        "[sparsity] sampled rows give {} and {}: queries, keys or values are not finite", spatial,
        temporal);
  return temporal < spatial ? TokenOrder::kHWF : TokenOrder::kFHW;
}

}  // namespace equitile
