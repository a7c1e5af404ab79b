#include "equitile/kernel/attention/attention_kv.h"

#include <algorithm>

#include "equitile/kernel/attention/attention_group.h"

namespace equitile {

PackedKv::PackedKv(const AttentionArgs& args, const Schedule& schedule, int threads,
                   Progress& progress)
    : args_(args),
      progress_(progress),
      kv_blocks_(args.grid.KvBlocks()),
      per_block_(args.grid.block_tokens / kStripTokens),
      buffers_(schedule.Buffers()),
      pitch_(StripPitch(args.head_dim, args.compute)),
      packs_(!args.k.IsStrips() || !args.v.IsStrips()),
      shared_strips_(packs_ ? buffers_ * kv_blocks_ * per_block_ : 0),
      own_strips_(packs_ ? RingBlocks() * per_block_ : 0),
      rings_(static_cast<size_t>(threads)),
      states_(packs_ ? static_cast<size_t>(buffers_ * kv_blocks_) : 0),
      tasks_left_(schedule.TasksInSlot().size()) {
  for (size_t slot = 0; slot < tasks_left_.size(); ++slot)
    tasks_left_[slot] = schedule.TasksInSlot()[slot];
  if (packs_) CountUses();
}

void PackedKv::PointAt(std::byte* base, int64_t strips,
                       std::vector<const std::byte*>& table) const {
  for (int64_t strip = 0; strip < strips; ++strip) table.push_back(base + strip * pitch_);
}

void PackedKv::Place(std::byte* shared) {
  PointAt(shared, shared_strips_, shared_k_);
  PointAt(shared + shared_strips_ * pitch_, shared_strips_, shared_v_);
}

void PackedKv::PlaceThread(int thread, std::byte* own) {
  Ring& ring = rings_[static_cast<size_t>(thread)];
  PointAt(own, own_strips_, ring.k);
  PointAt(own + own_strips_ * pitch_, own_strips_, ring.v);
}

// Which blocks of which lanes several rows ask for.
void PackedKv::CountUses() {
  const bool walks_once = per_block_ <= GroupStrips(args_.head_dim);
  uses_.assign(static_cast<size_t>(args_.lanes.Count() * kv_blocks_), walks_once ? 0 : kShareFrom);
  for (int64_t i = 0; i < args_.rows->Count(); ++i) {
    const int64_t lane = args_.rows->rows[static_cast<size_t>(i)].lane;
    for (int32_t block : args_.rows->KvBlocks(i)) {
      uint8_t& uses = uses_[static_cast<size_t>(lane * kv_blocks_ + block)];
      uses = std::min<uint8_t>(uses + 1, kShareFrom);
    }
  }
}

void PackedKv::Begin(const RowTask& task, int thread) {
  rings_[static_cast<size_t>(thread)].next = 0;
  const int64_t before = task.slot - buffers_;
  if (!packs_ || before < 0) return;
  const std::atomic<int64_t>& left = tasks_left_[static_cast<size_t>(before)];
  progress_.WaitUntil([&] { return left.load(std::memory_order_acquire) == 0; }, thread);
}

void PackedKv::End(const RowTask& task) {
  tasks_left_[static_cast<size_t>(task.slot)].fetch_sub(1, std::memory_order_release);
}

BlockStrips PackedKv::Get(const RowTask& task, int64_t kv_block, int thread) {
  BlockStrips strips;
  if (packs_ && Shared(task.lane, kv_block)) {
    strips = SharedStrips(task.slot, kv_block);
    PackOnce(task, kv_block, thread);
  } else if (packs_) {
    Ring& ring = rings_[static_cast<size_t>(thread)];
    const int64_t at = ring.next++ % RingBlocks() * per_block_;
    strips = {ring.k.data() + at, ring.v.data() + at};
    Pack(strips, task.lane, kv_block);
  }
  return OrGiven(strips, task.lane, kv_block);
}

BlockStrips PackedKv::Look(const RowTask& task, int64_t kv_block, NextReads* reads) {
  if (!packs_) return OrGiven({}, task.lane, kv_block);
  if (Shared(task.lane, kv_block)) {
    const int64_t state = State(task.slot, kv_block).load(std::memory_order_relaxed);
    if (state == Ready(task.slot))
      return OrGiven(SharedStrips(task.slot, kv_block), task.lane, kv_block);
    if (state == Packing(task.slot)) return {};
  }
  if (reads == nullptr) return {};
  const int32_t* order = args_.KvOrder(task.lane);
  const Range tokens = args_.grid.KvBlockTokens(kv_block);
  reads->AddTokens(args_.k, args_.lanes, task.lane, order, tokens);
  reads->AddTokens(args_.v, args_.lanes, task.lane, order, tokens);
  return {};
}

BlockStrips PackedKv::SharedStrips(int64_t slot, int64_t kv_block) const {
  const int64_t at = (slot % buffers_ * kv_blocks_ + kv_block) * per_block_;
  return {shared_k_.data() + at, shared_v_.data() + at};
}

BlockStrips PackedKv::OrGiven(BlockStrips strips, int64_t lane, int64_t kv_block) const {
  auto given = [&](const TokenSource& source) {
    return source.strips.strips.data() + lane * source.strips.strips_per_lane +
           kv_block * per_block_;
  };
  if (args_.k.IsStrips()) strips.k = given(args_.k);
  if (args_.v.IsStrips()) strips.v = given(args_.v);
  return strips;
}

// Packs a shared block, or waits until another thread has.
void PackedKv::PackOnce(const RowTask& task, int64_t kv_block, int thread) {
  std::atomic<int64_t>& state = State(task.slot, kv_block);
  const int64_t ready = Ready(task.slot), packing = Packing(task.slot);
  int64_t seen = state.load(std::memory_order_acquire);
  if (seen == ready) return;
  if (seen < packing && state.compare_exchange_strong(seen, packing)) {
    Pack(SharedStrips(task.slot, kv_block), task.lane, kv_block);
    state.store(ready, std::memory_order_release);
  } else {
    progress_.WaitUntil([&] { return state.load(std::memory_order_acquire) == ready; }, thread);
  }
}

void PackedKv::Pack(const BlockStrips& to, int64_t lane, int64_t kv_block) const {
  const Range tokens = args_.grid.KvBlockTokens(kv_block);
  auto pack = [&](StripLayout layout, const TokenSource& source, const std::byte* const* strips,
                  const float* center) {
    if (source.IsStrips()) return;
    PackStrips({.layout = layout,
                .compute = args_.compute,
                .source = &source,
                .lanes = args_.lanes,
                .lane = lane,
                .tokens = args_.grid.kv_tokens,
                .head_dim = args_.head_dim,
                .token_at_position = args_.KvOrder(lane),
                .strips = {tokens.begin / kStripTokens, CeilDiv(tokens.end, kStripTokens)},
                .pitch = pitch_,
                .center = center},
               const_cast<std::byte*>(strips[0]));
  };
  pack(StripLayout::kKey, args_.k, to.k, args_.KCenter(lane));
  pack(StripLayout::kValue, args_.v, to.v, nullptr);
}

}  // namespace equitile
