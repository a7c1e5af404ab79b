#include "equitile/sparsity/source/lane_rows.h"

#include <algorithm>
#include <numeric>

namespace equitile {
namespace {

constexpr int32_t kTag = Communicator::kMaxTag - 3;  // far from the tags of self-attention
constexpr int64_t kRowsAtOnce = 64;

// Of each rank, at least: whoever waits for rows of the next one has others' rows on their way.
constexpr int64_t kLanesUnderWay = 4;

}  // namespace

LaneRows::LaneRows(const SourceContext& context, int64_t at_once)
    : context_(context),
      homes_({.ranks = context.comm->size(),
              .lanes = context.lanes,
              .grid = context.grid,
              .token_grid = {},
              .orders = {}}),
      at_once_(at_once),
      all_(static_cast<size_t>(context.grid.kv_tokens)) {
  std::iota(all_.begin(), all_.end(), int64_t{0});
  // One rank has nothing to wait for.
  const int64_t slots =
      context.comm->size() == 1 ? 1 : std::max<int64_t>(2, CeilDiv(kLanesUnderWay, at_once));
  batches_.resize(static_cast<size_t>(slots));
}

void LaneRows::InTurns(std::span<const int64_t> lanes, FunctionRef<void(const Turn&)> gather,
                       FunctionRef<void(const Turn&)> use) {
  const std::vector<std::vector<LaneMaker>> turns =
      equitile::InTurns(MakersOf(homes_, context_.lanes, lanes), at_once_);
  size_t gathered = 0;
  AbortOnError(*context_.comm, [&] {
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      for (; gathered < std::min(turns.size(), turn + Slots()); ++gathered) {
        const size_t slot = gathered % Slots();
        batch_ = &batches_[slot];
        Finish(batch_->leaving);
        gather({.lanes = turns[gathered], .slot = slot});
      }
      const size_t slot = turn % Slots();
      Finish(batches_[slot].arriving);
      use({.lanes = turns[turn], .slot = slot});
    }
    for (Batch& batch : batches_) Finish(batch.leaving);
  });
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

void LaneRows::Gather(const RowProducer& rows, const LaneMaker& lane,
                      std::span<const int64_t> tokens, std::vector<float>& to) {
  Communicator& comm = *context_.comm;
  const auto floats = [&](std::span<const int64_t> some) {
    return some.size() * static_cast<size_t>(context_.head_dim);
  };
  const std::span<const int64_t> own = AtHome(comm.rank(), lane.lane, tokens);
  if (!IsOwn(lane)) {
    to.clear();
    if (own.empty()) return;
    const size_t message_index = batch_->leaving.size();
    if (message_index == batch_->sent.size()) batch_->sent.emplace_back();
    std::vector<float>& message = batch_->sent[message_index];
    message.resize(floats(own));
    Read(rows, lane.lane, own, message.data());
    batch_->leaving.push_back(comm.Send(std::as_bytes(std::span(message)), lane.maker, kTag));
    return;
  }
  to.resize(floats(tokens));
  size_t at = 0;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {  // homes are in the order of tokens
    const std::span<float> part =
        std::span(to).subspan(at, floats(AtHome(rank, lane.lane, tokens)));
    at += part.size();
    if (rank == comm.rank()) {
      Read(rows, lane.lane, own, part.data());
    } else if (!part.empty()) {
      batch_->arriving.push_back(comm.Receive(std::as_writable_bytes(part), rank, kTag));
    }
  }
}

void LaneRows::Finish(std::vector<CommRequest>& requests) {
  for (CommRequest& request : requests) context_.comm->Wait(request);
  requests.clear();
}

int64_t LaneRows::Bytes() const {
  size_t floats = 0;
  for (const Batch& batch : batches_) {
    for (const std::vector<float>& message : batch.sent) floats += message.capacity();
  }
  return static_cast<int64_t>(floats * sizeof(float));
}

}  // namespace equitile
