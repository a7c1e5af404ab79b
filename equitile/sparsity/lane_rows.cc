#include "equitile/sparsity/lane_rows.h"

#include <algorithm>
#include <numeric>

#include "equitile/sparsity/strip_pool.h"

namespace equitile {
namespace {

constexpr int32_t kTag = Communicator::kMaxTag - 3;  // far from the tags of self-attention
constexpr int64_t kRowsAtOnce = 64;

}  // namespace

LaneRows::LaneRows(const SourceContext& context)
    : context_(context),
      homes_({.ranks = context.comm->size(),
              .lanes = context.lanes,
              .grid = context.grid,
              .token_grid = {},
              .orders = {}}),
      all_(static_cast<size_t>(context.grid.kv_tokens)) {
  std::iota(all_.begin(), all_.end(), int64_t{0});
}

std::span<const int64_t> LaneRows::AtHome(int32_t rank, int64_t lane,
                                          std::span<const int64_t> tokens) const {
  const Range home = homes_.RankTokens(Side::kQuery, rank, context_.lanes.BatchOf(lane));
  const auto first = std::ranges::lower_bound(tokens, home.begin);
  return {first, std::ranges::lower_bound(first, tokens.end(), home.end)};
}

void LaneRows::Read(const RowProducer& rows, int64_t lane, std::span<const int64_t> tokens,
                    float* to) const {
  const int64_t count = std::ssize(tokens);
  context_.pool->ParallelFor(CeilDiv(count, kRowsAtOnce), [&](int64_t part, int) {
    const int64_t end = std::min(count, (part + 1) * kRowsAtOnce);
    for (int64_t begin = part * kRowsAtOnce, run = 0; begin < end; begin += run) {
      const int64_t token = tokens[static_cast<size_t>(begin)];
      for (run = 1; begin + run < end && tokens[static_cast<size_t>(begin + run)] == token + run;)
        ++run;
      rows(lane, token, run, to + begin * context_.head_dim);
    }
  });
}

void LaneRows::Gather(const RowProducer& rows, int64_t lane, std::span<const int64_t> tokens,
                      std::vector<float>& to) {
  Communicator& comm = *context_.comm;
  const auto floats = [&](std::span<const int64_t> some) {
    return some.size() * static_cast<size_t>(context_.head_dim);
  };
  const std::span<const int64_t> own = AtHome(comm.rank(), lane, tokens);
  if (comm.rank() != MaskMakerOf(lane, comm.size())) {
    to.clear();
    if (own.empty()) return;
    if (sending_ == sent_.size()) sent_.emplace_back();
    std::vector<float>& message = sent_[sending_++];
    message.resize(floats(own));
    Read(rows, lane, own, message.data());
    under_way_.push_back(
        comm.Send(std::as_bytes(std::span(message)), MaskMakerOf(lane, comm.size()), kTag));
    return;
  }
  to.resize(floats(tokens));
  size_t at = 0;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {  // homes are in the order of tokens
    const std::span<float> part = std::span(to).subspan(at, floats(AtHome(rank, lane, tokens)));
    at += part.size();
    if (rank == comm.rank()) {
      Read(rows, lane, own, part.data());
    } else if (!part.empty()) {
      under_way_.push_back(comm.Receive(std::as_writable_bytes(part), rank, kTag));
    }
  }
}

void LaneRows::Finish() {
  for (CommRequest& request : under_way_) context_.comm->Wait(request);
  under_way_.clear();
  sending_ = 0;
}

int64_t LaneRows::Bytes() const {
  size_t floats = 0;
  for (const std::vector<float>& message : sent_) floats += message.capacity();
  return static_cast<int64_t>(floats * sizeof(float));
}

}  // namespace equitile
