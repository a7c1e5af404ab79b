#include "equitile/sparsity/svg_masks.h"

#include <algorithm>

#include "equitile/sparsity/strip_pool.h"

namespace equitile {
namespace {

constexpr int32_t kTag = Communicator::kMaxTag - 3;  // far from the tags of self-attention

}  // namespace

SvgMasks::SvgMasks(const SourceContext& context, SvgOptions options)
    : context_(context),
      options_(options),
      homes_({.ranks = context.comm->size(),
              .lanes = context.lanes,
              .grid = context.grid,
              .token_grid = {},
              .orders = {}}),
      mask_(SvgMask(context.token_grid, context.grid.block_tokens, options)),
      sampled_(SvgSampledTokens(context.token_grid, options)) {}

std::vector<int64_t> SvgMasks::HomeTokens(int32_t rank, int64_t lane, bool sampled_only) const {
  const Range home = homes_.RankTokens(Side::kQuery, rank, context_.lanes.BatchOf(lane));
  std::vector<int64_t> tokens;
  if (sampled_only) {
    for (const int64_t token : sampled_) {
      if (home.Contains(token)) tokens.push_back(token);
    }
  } else {
    for (int64_t token = home.begin; token < home.end; ++token) tokens.push_back(token);
  }
  return tokens;
}

std::vector<float> SvgMasks::ReadHome(const RowProducer& rows, int64_t lane,
                                      bool sampled_only) const {
  const std::vector<int64_t> tokens = HomeTokens(context_.comm->rank(), lane, sampled_only);
  std::vector<float> values(tokens.size() * static_cast<size_t>(context_.head_dim));
  context_.pool->ParallelFor(std::ssize(tokens), [&](int64_t i, int) {
    rows(lane, tokens[static_cast<size_t>(i)], 1, values.data() + i * context_.head_dim);
  });
  return values;
}

std::vector<float> SvgMasks::GatherRowsOf(const RowProducer& rows, int64_t lane,
                                          bool sampled_only) const {
  Communicator& comm = *context_.comm;
  const int32_t maker = MaskMakerOf(lane, comm.size());
  const std::vector<float> own = ReadHome(rows, lane, sampled_only);
  if (comm.rank() != maker) {
    if (own.empty()) return {};
    CommRequest request = comm.Send(std::as_bytes(std::span(own)), maker, kTag);
    comm.Wait(request);
    return {};
  }
  std::vector<float> all;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {  // homes are in the order of tokens
    const size_t numbers =
        HomeTokens(rank, lane, sampled_only).size() * static_cast<size_t>(context_.head_dim);
    const size_t at = all.size();
    all.resize(at + numbers);
    if (rank == comm.rank()) {
      std::copy(own.begin(), own.end(), all.begin() + static_cast<int64_t>(at));
    } else if (numbers > 0) {
      CommRequest request =
          comm.Receive(std::as_writable_bytes(std::span(all).subspan(at, numbers)), rank, kTag);
      comm.Wait(request);
    }
  }
  return all;
}

// Collective; what it says counts on the lane's maker.
TokenOrder SvgMasks::ChooseOrder(const SelfAttentionCall& call, int64_t lane) const {
  const std::vector<float> q = GatherRowsOf(call.q, lane, /*sampled_only=*/true);
  const std::vector<float> k = GatherRowsOf(call.k, lane, /*sampled_only=*/false);
  const std::vector<float> v = GatherRowsOf(call.v, lane, /*sampled_only=*/false);
  if (k.empty()) return TokenOrder::kFHW;
  const int64_t dim = context_.head_dim, tokens = context_.grid.kv_tokens;
  std::vector<float> scores(sampled_.size() * static_cast<size_t>(tokens));
  context_.pool->ParallelFor(std::ssize(sampled_), [&](int64_t row, int) {
    for (int64_t key = 0; key < tokens; ++key) {
      float score = 0;
      for (int64_t i = 0; i < dim; ++i)
        score += q[static_cast<size_t>(row * dim + i)] * k[static_cast<size_t>(key * dim + i)];
      scores[static_cast<size_t>(row * tokens + key)] = score * call.scale;
    }
  });
  return ChooseSvgOrder({.tokens = sampled_, .scores = scores, .values = v}, mask_,
                        context_.token_grid);
}

LaneMasks SvgMasks::MaskFor(const SelfAttentionCall& call) {
  const int64_t lanes = context_.lanes.Count();
  std::vector<uint64_t> temporal(static_cast<size_t>(lanes), 0);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const TokenOrder order = ChooseOrder(call, lane);
    const bool here = MaskMakerOf(lane, context_.comm->size()) == context_.comm->rank();
    temporal[static_cast<size_t>(lane)] = here && order != TokenOrder::kFHW ? 1 : 0;
  }
  context_.comm->AllReduce(std::span<uint64_t>(temporal), Reduce::kMax);
  LaneMasks::Parts parts;
  parts.blocks = BlockMask(context_.lanes, context_.grid);
  parts.token_grid = context_.token_grid;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const bool is_temporal = temporal[static_cast<size_t>(lane)] != 0;
    parts.orders.push_back(is_temporal ? TokenOrder::kHWF : TokenOrder::kFHW);
    for (int64_t row = 0; row < mask_.QBlocks(); ++row) {
      const auto from = mask_.Row(0, row);
      std::copy(from.begin(), from.end(), parts.blocks.MutableRow(lane, row).begin());
    }
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile
