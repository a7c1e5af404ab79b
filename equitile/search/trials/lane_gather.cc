#include "equitile/search/trials/lane_gather.h"

#include <algorithm>
#include <array>

#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

constexpr int32_t kTag = Communicator::kMaxTag - 4;  // far from the tags of self-attention
constexpr int64_t kTileTokens = 64;                  // what one thread produces at once

int64_t RowFloats(const std::vector<Range>& homes, const std::vector<int64_t>& lanes,
                  const Lanes& shape) {
  int64_t rows = 0;
  for (int64_t lane : lanes) rows += homes[static_cast<size_t>(shape.BatchOf(lane))].size();
  return 3 * rows;
}

}  // namespace

int64_t LaneGather::LaneBytes(int64_t tokens, int64_t head_dim) {
  return 2 * 3 * tokens * head_dim * static_cast<int64_t>(sizeof(float));
}

LaneGather::LaneGather(Lanes lanes, int64_t tokens, int64_t head_dim, int64_t round_bytes,
                       Communicator& comm, ThreadPool& pool)
    : lanes_(lanes),
      tokens_(tokens),
      head_dim_(head_dim),
      per_round_(std::clamp<int64_t>(round_bytes / LaneBytes(tokens, head_dim), 1,
                                     CeilDiv(lanes.Count(), comm.size()))),
      rounds_(CeilDiv(lanes.Count(), per_round_ * comm.size())),
      comm_(comm),
      pool_(pool),
      sends_(static_cast<size_t>(comm.size())),
      receives_(sends_.size()) {
  for (int32_t rank = 0; rank < comm.size(); ++rank)
    homes_.push_back(HomeTokens(lanes.batch, lanes.heads, tokens, rank, comm.size()));
}

std::vector<int64_t> LaneGather::LanesOf(int32_t rank, int64_t round) const {
  std::vector<int64_t> lanes;
  for (int64_t i = 0; i < per_round_; ++i) {
    const int64_t lane = (round * per_round_ + i) * comm_.size() + rank;
    if (lane < lanes_.Count()) lanes.push_back(lane);
  }
  return lanes;
}

Range LaneGather::Home(int32_t rank, int64_t lane) const {
  return homes_[static_cast<size_t>(rank)][static_cast<size_t>(lanes_.BatchOf(lane))];
}

// What is at home here, for every rank that asks for it in this round.
void LaneGather::Fill(const SelfAttentionCall& call, int64_t round) {
  struct Tile {
    const RowProducer* rows;
    int64_t lane;
    Range tokens;
    float* to;
  };
  std::vector<Tile> tiles;
  for (int32_t to = 0; to < comm_.size(); ++to) {
    const std::vector<int64_t> lanes = LanesOf(to, round);
    std::vector<float>& message = sends_[static_cast<size_t>(to)];
    message.resize(static_cast<size_t>(
        head_dim_ * RowFloats(homes_[static_cast<size_t>(comm_.rank())], lanes, lanes_)));
    float* at = message.data();
    for (int64_t lane : lanes) {
      const Range home = Home(comm_.rank(), lane);
      for (const RowProducer* rows : {&call.q, &call.k, &call.v}) {
        for (int64_t token = home.begin; token < home.end; token += kTileTokens) {
          const Range tile = {token, std::min(token + kTileTokens, home.end)};
          tiles.push_back({rows, lane, tile, at});
          at += tile.size() * head_dim_;
        }
      }
    }
  }
  pool_.ParallelFor(std::ssize(tiles), [&](int64_t i, int) {
    const Tile& tile = tiles[static_cast<size_t>(i)];
    (*tile.rows)(tile.lane, tile.tokens.begin, tile.tokens.size(), tile.to);
  });
}

void LaneGather::Unpack(int32_t from, std::span<const float> message) {
  const float* at = message.data();
  for (size_t i = 0; i < inputs_.lanes.size(); ++i) {
    const Range home = Home(from, inputs_.lanes[i]);
    const int64_t floats = home.size() * head_dim_;
    for (std::vector<float>* side : {&inputs_.q, &inputs_.k, &inputs_.v}) {
      float* to = side->data() + (static_cast<int64_t>(i) * tokens_ + home.begin) * head_dim_;
      std::copy_n(at, floats, to);
      at += floats;
    }
  }
}

const LaneInputs& LaneGather::Gather(const SelfAttentionCall& call, int64_t round) {
  Fill(call, round);
  inputs_.lanes = LanesOf(comm_.rank(), round);
  inputs_.tokens = tokens_;
  inputs_.head_dim = head_dim_;
  inputs_.scale = call.scale;
  const auto floats = inputs_.lanes.size() * static_cast<size_t>(tokens_ * head_dim_);
  for (std::vector<float>* side : {&inputs_.q, &inputs_.k, &inputs_.v}) side->resize(floats);
  std::vector<CommRequest> requests;
  for (int32_t other = 0; other < comm_.size(); ++other) {
    if (other == comm_.rank()) continue;
    std::vector<float>& from = receives_[static_cast<size_t>(other)];
    from.resize(static_cast<size_t>(
        head_dim_ * RowFloats(homes_[static_cast<size_t>(other)], inputs_.lanes, lanes_)));
    if (!from.empty())
      requests.push_back(comm_.Receive(std::as_writable_bytes(std::span(from)), other, kTag));
    const std::vector<float>& to = sends_[static_cast<size_t>(other)];
    if (!to.empty()) requests.push_back(comm_.Send(std::as_bytes(std::span(to)), other, kTag));
  }
  Unpack(comm_.rank(), sends_[static_cast<size_t>(comm_.rank())]);
  for (CommRequest& request : requests) comm_.Wait(request);
  for (int32_t other = 0; other < comm_.size(); ++other) {
    if (other != comm_.rank()) Unpack(other, receives_[static_cast<size_t>(other)]);
  }
  return inputs_;
}

}  // namespace equitile
