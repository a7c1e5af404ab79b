#include "equitile/search/trials/packed_lanes.h"

#include <algorithm>

namespace equitile {
namespace {

// [lanes][tokens][head_dim] as the kernels see it.
ConstView RowsView(std::span<const float> rows, const Lanes& lanes, int64_t tokens,
                   int64_t head_dim) {
  return ConstView(rows.data(), Shape{lanes.batch, tokens, lanes.heads, head_dim});
}

}  // namespace

int64_t PackedLanes::LaneBytes(int64_t tokens, int64_t head_dim) {
  return 3 * CeilDiv(tokens, kStripTokens) * StripPitch(head_dim);
}

PackedLanes::PackedLanes(const LaneInputs& inputs, const TokenGrid& grid, int64_t block_tokens,
                         TokenOrder order, ThreadPool& pool, Workspace& workspace)
    : lanes_{.batch = std::ssize(inputs.lanes), .heads = 1},
      grid_{.q_tokens = inputs.tokens, .kv_tokens = inputs.tokens, .block_tokens = block_tokens},
      head_dim_(inputs.head_dim),
      strips_(CeilDiv(inputs.tokens, kStripTokens)),
      scale_(inputs.scale),
      pool_(pool),
      workspace_(workspace) {
  const std::vector<int32_t> token_at_position = TokenAtPosition(grid, order);
  q_ = Pack(inputs.q, StripLayout::kQuery, token_at_position);
  k_ = Pack(inputs.k, StripLayout::kKey, token_at_position);
  v_ = Pack(inputs.v, StripLayout::kValue, token_at_position);
  MakeMeans(inputs, token_at_position);
}

PackedLanes::Side PackedLanes::Pack(std::span<const float> rows, StripLayout layout,
                                    const std::vector<int32_t>& token_at_position) {
  const TokenSource source(RowsView(rows, lanes_, grid_.q_tokens, head_dim_));
  const int64_t pitch = StripPitch(head_dim_);
  Side side{.bytes = AlignedBuffer<std::byte>(lanes_.Count() * strips_ * pitch), .strips = {}};
  for (int64_t i = 0; i < lanes_.Count() * strips_; ++i)
    side.strips.push_back(side.bytes.data() + i * pitch);
  constexpr int64_t kAtOnce = 16;
  const int64_t parts = CeilDiv(strips_, kAtOnce);
  pool_.ParallelFor(lanes_.Count() * parts, [&](int64_t task, int) {
    const int64_t lane = task / parts, first = task % parts * kAtOnce;
    PackStrips({.layout = layout,
                .source = &source,
                .lanes = lanes_,
                .lane = lane,
                .tokens = grid_.q_tokens,
                .head_dim = head_dim_,
                .token_at_position = token_at_position.data(),
                .strips = {first, std::min(first + kAtOnce, strips_)},
                .pitch = pitch},
               side.bytes.data() + (lane * strips_ + first) * pitch);
  });
  return side;
}

void PackedLanes::MakeMeans(const LaneInputs& inputs,
                            const std::vector<int32_t>& token_at_position) {
  const int64_t blocks = grid_.KvBlocks(), side = blocks * head_dim_;
  mean_rows_.resize(static_cast<size_t>(lanes_.Count() * 2 * side));
  mean_tails_.assign(static_cast<size_t>(lanes_.Count()), Tail::kMean);
  const TokenSource sources[] = {RowsView(inputs.k, lanes_, grid_.kv_tokens, head_dim_),
                                 RowsView(inputs.v, lanes_, grid_.kv_tokens, head_dim_)};
  for (int64_t lane = 0; lane < lanes_.Count(); ++lane) {
    float* k = mean_rows_.data() + lane * 2 * side;
    means_.push_back({.k = k, .v = k + side, .stride = head_dim_});
  }
  pool_.ParallelFor(2 * lanes_.Count(), [&](int64_t task, int) {
    BlockMeans({.source = &sources[task % 2],
                .lanes = lanes_,
                .lane = task / 2,
                .grid = grid_,
                .head_dim = head_dim_,
                .token_at_position = token_at_position.data(),
                .blocks = {0, blocks},
                .stride = head_dim_},
               mean_rows_.data() + task * side);
  });
}

LaneOutput PackedLanes::Output() const {
  const auto positions = static_cast<size_t>(lanes_.Count() * grid_.q_tokens);
  return {.out = std::vector<float>(positions * static_cast<size_t>(head_dim_)),
          .lse = std::vector<float>(positions)};
}

AttentionArgs PackedLanes::Args(const AttentionRows& rows, LaneOutput& output) const {
  AttentionArgs args;
  args.lanes = lanes_;
  args.grid = grid_;
  args.head_dim = head_dim_;
  args.scale = scale_;
  args.rows = &rows;
  args.q = TokenSource(StripTable{q_.strips, strips_});
  args.k = TokenSource(StripTable{k_.strips, strips_});
  args.v = TokenSource(StripTable{v_.strips, strips_});
  args.out = View(output.out.data(), Shape{lanes_.batch, grid_.q_tokens, lanes_.heads, head_dim_});
  args.lse = output.lse.data();
  return args;
}

void PackedLanes::Attend(const AttentionRows& rows, LaneOutput& output, float* masses) {
  AttentionArgs args = Args(rows, output);
  args.masses = masses;
  Attention(args, pool_, workspace_);
}

void PackedLanes::AttendToMeans(const AttentionRows& rows, const BlockMask& kept,
                                LaneOutput& output) {
  AttentionArgs args = Args(rows, output);
  args.tails = {.lanes = mean_tails_, .means = means_, .kept = &kept};
  Attention(args, pool_, workspace_);
}

}  // namespace equitile
