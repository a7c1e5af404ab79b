#include "equitile/search/trials/order_masses.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "equitile/kernel/rows/pooling.h"
#include "equitile/search/state/checkpoint_numbers.h"
#include "equitile/search/trials/packed_lanes.h"
#include "equitile/search/trials/trial_recorder.h"

namespace equitile {
namespace {

int64_t BlocksOf(const BlockGrid& grid) { return grid.QBlocks() * grid.KvBlocks(); }
constexpr auto kOrders = static_cast<int64_t>(kAxisOrders.size());

struct KeptBlocks {
  std::vector<int64_t> blocks;
  uint64_t held = 0;
};

// Heaviest first; of equal ones the first.
KeptBlocks Heaviest(std::span<const uint64_t> masses, const BlockGrid& grid, int64_t wanted) {
  std::vector<int64_t> order(masses.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return masses[static_cast<size_t>(a)] > masses[static_cast<size_t>(b)];
  });
  KeptBlocks kept;
  std::vector<bool> has_row(static_cast<size_t>(grid.QBlocks()));
  int64_t rows_left = grid.QBlocks();
  for (int64_t block : order) {
    const auto row = static_cast<size_t>(block / grid.KvBlocks());
    const bool is_first = !has_row[row];
    // Room is kept for the rows that have nothing yet.
    if (!is_first && std::ssize(kept.blocks) + rows_left >= wanted) continue;
    if (is_first) --rows_left;
    has_row[row] = true;
    kept.blocks.push_back(block);
    kept.held += masses[static_cast<size_t>(block)];
  }
  return kept;
}

}  // namespace

OrderMasses::OrderMasses(int64_t layers, int64_t heads, const BlockGrid& grid)
    : heads_(heads),
      grid_(grid),
      sums_(static_cast<size_t>(layers * heads * kOrders * BlocksOf(grid))) {}

int64_t OrderMasses::Bytes(int64_t layers, int64_t heads, const BlockGrid& grid) {
  return layers * heads * kOrders * BlocksOf(grid) * static_cast<int64_t>(sizeof(uint64_t));
}

std::span<uint64_t> OrderMasses::Layer(int64_t layer) {
  const auto size = static_cast<size_t>(heads_ * kOrders * BlocksOf(grid_));
  return std::span(sums_).subspan(static_cast<size_t>(layer) * size, size);
}

std::span<uint64_t> OrderMasses::Of(int64_t layer, int64_t head, size_t order) {
  const auto size = static_cast<size_t>(BlocksOf(grid_));
  return Layer(layer).subspan((static_cast<size_t>(head * kOrders) + order) * size, size);
}
std::span<const uint64_t> OrderMasses::Of(int64_t layer, int64_t head, size_t order) const {
  return const_cast<OrderMasses*>(this)->Of(layer, head, order);
}

void OrderMasses::AddTo(SourceState& parts) const { PutNumbers(sums_, parts["orders"]); }
void OrderMasses::Restore(const SourceState& parts) {
  sums_ = TakeNumbers<uint64_t>(parts, "orders", sums_.size());
}

OrderMassSource::OrderMassSource(const SourceContext& context, int64_t dense_steps,
                                 OrderMasses& sums)
    : context_(context),
      dense_steps_(dense_steps),
      dense_(BlockMask::Dense(context.lanes, context.grid)),
      gather_(context.lanes, context.grid.q_tokens, context.head_dim, kRoundBytes, *context.comm,
              *context.pool),
      sums_(sums) {}

LaneMasks OrderMassSource::MaskFor(const SelfAttentionCall& call) {
  const int64_t step = call.step - dense_steps_;
  if (step < 0 || step % kOrderMassesEvery != 0) return dense_;
  const std::span<uint64_t> layer = sums_.Layer(call.layer);
  std::vector<uint64_t> seen(layer.size());
  for (int64_t round = 0; round < gather_.Rounds(); ++round) Add(gather_.Gather(call, round), seen);
  context_.comm->AllReduce(std::span(seen), Reduce::kSum);
  for (size_t i = 0; i < layer.size(); ++i) layer[i] += seen[i];
  return dense_;
}

void OrderMassSource::Add(const LaneInputs& inputs, std::span<uint64_t> seen) {
  if (inputs.lanes.empty()) return;
  const auto blocks = static_cast<size_t>(BlocksOf(context_.grid));
  for (size_t order = 0; order < kAxisOrders.size(); ++order) {
    PackedLanes lanes(inputs, context_.token_grid, context_.grid.block_tokens, kAxisOrders[order],
                      *context_.pool, workspace_);
    const AttentionRows rows = AttentionRows::Dense(lanes.lanes(), lanes.grid());
    std::vector<float> masses(rows.kv_blocks.size());
    LaneOutput output = lanes.Output();
    lanes.Attend(rows, output, masses.data());
    // Rows of the list are in the order of lanes and blocks.
    for (size_t i = 0; i < masses.size(); ++i) {
      const auto head = static_cast<size_t>(context_.lanes.HeadOf(inputs.lanes[i / blocks]));
      const double share = static_cast<double>(masses[i]) * kWholeMass;
      if (share > 0 && share <= 2.0 * kWholeMass) {
        seen[(head * kAxisOrders.size() + order) * blocks + i % blocks] +=
            static_cast<uint64_t>(std::llround(share));
      }
    }
  }
}

LaneMasks MasksByOrder(const OrderMasses& sums, int64_t layer, int64_t heads, const TokenGrid& grid,
                       double density) {
  const BlockGrid& blocks = sums.grid();
  const auto wanted =
      static_cast<int64_t>(std::llround(density * static_cast<double>(BlocksOf(blocks))));
  LaneMasks::Parts parts{.blocks = BlockMask({.batch = 1, .heads = heads}, blocks),
                         .token_grid = grid,
                         .orders = {},
                         .tails = {}};
  for (int64_t head = 0; head < heads; ++head) {
    KeptBlocks best = Heaviest(sums.Of(layer, head, 0), blocks, wanted);
    TokenOrder best_order = kAxisOrders[0];
    for (size_t order = 1; order < kAxisOrders.size(); ++order) {
      KeptBlocks kept = Heaviest(sums.Of(layer, head, order), blocks, wanted);
      if (kept.held <= best.held) continue;
      best = std::move(kept);
      best_order = kAxisOrders[order];
    }
    for (int64_t block : best.blocks)
      parts.blocks.Set(head, block / blocks.KvBlocks(), block % blocks.KvBlocks());
    parts.orders.push_back(best_order);
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile
