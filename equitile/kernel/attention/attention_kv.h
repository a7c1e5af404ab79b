// The packed keys and values of one attention call. A kv block of a lane is packed by the first row
// that comes to it, and shared by the others; so packing is spread over the threads, only what is
// needed is packed, and it is in the cache of the one that uses it first. A block that few rows ask
// for is packed by each of them into a few kilobytes of its thread, which stay in cache, and not
// into memory that others share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/attention/attention_progress.h"
#include "equitile/kernel/attention/attention_schedule.h"
#include "equitile/kernel/attention/next_reads.h"

namespace equitile {

// The packed strips of one kv block: pointers to each, null where they are not packed yet.
struct BlockStrips {
  const std::byte* const* k = nullptr;
  const std::byte* const* v = nullptr;
};

class PackedKv {
 public:
  PackedKv(const AttentionArgs& args, const Schedule& schedule, int threads, Progress& progress);

  // Memory that it needs, of the call and of each thread; given to it before anything else.
  int64_t SharedBytes() const { return 2 * shared_strips_ * pitch_; }
  int64_t ThreadBytes() const { return 2 * own_strips_ * pitch_; }
  void Place(std::byte* shared);
  void PlaceThread(int thread, std::byte* own);

  // Around the task of a thread: its lane's buffer may still be in use by the lane before.
  void Begin(const RowTask& task, int thread);
  void End(const RowTask& task);

  // The strips of a kv block of the thread's task, as they came, or packed, now or earlier. They
  // stay while the thread reads the chunk after theirs, which may begin within the block.
  BlockStrips Get(const RowTask& task, int64_t kv_block, int thread);

  // The same as far as they are there, or the tokens that are to be packed into `reads`, unless
  // that is null.
  BlockStrips Look(const RowTask& task, int64_t kv_block, NextReads* reads);

  // Strips of a block: fewer at the end of the sequence.
  int64_t StripsOf(int64_t kv_block) const {
    return CeilDiv(args_.grid.KvBlockTokens(kv_block).size(), kStripTokens);
  }

 private:
  // Rows that make it worth to pack a block into shared memory: with fewer, each packs it for
  // itself, where it is in cache.
  static constexpr uint8_t kShareFrom = 4;

  // A thread's own blocks, by turns.
  struct Ring {
    std::vector<const std::byte*> k, v;
    int64_t next = 0;
  };

  // Blocks that a chunk may look at, whose ends may cut a block.
  int64_t RingBlocks() const { return CeilDiv(kChunkStrips, per_block_) + 1; }
  void PointAt(std::byte* base, int64_t strips, std::vector<const std::byte*>& table) const;
  void CountUses();
  bool Shared(int64_t lane, int64_t kv_block) const {
    return uses_[static_cast<size_t>(lane * kv_blocks_ + kv_block)] >= kShareFrom;
  }
  BlockStrips SharedStrips(int64_t slot, int64_t kv_block) const;
  BlockStrips OrGiven(BlockStrips strips, int64_t lane, int64_t kv_block) const;
  void PackOnce(const RowTask& task, int64_t kv_block, int thread);
  void Pack(const BlockStrips& to, int64_t lane, int64_t kv_block) const;

  // States of kv blocks, by buffer. They grow with the slot that uses the buffer, so that nobody
  // has to reset them.
  std::atomic<int64_t>& State(int64_t slot, int64_t kv_block) {
    return states_[static_cast<size_t>(slot % buffers_ * kv_blocks_ + kv_block)];
  }
  static int64_t Packing(int64_t slot) { return 2 * slot + 1; }
  static int64_t Ready(int64_t slot) { return 2 * slot + 2; }

  const AttentionArgs& args_;
  Progress& progress_;
  const int64_t kv_blocks_, per_block_, buffers_;
  const int64_t pitch_;                                // bytes
  const bool packs_;                                   // else K and V came as strips
  const int64_t shared_strips_, own_strips_;           // of keys, and as many of values
  std::vector<const std::byte*> shared_k_, shared_v_;  // [buffers][kv_blocks][strips of a block]
  std::vector<Ring> rings_;                            // by thread
  std::vector<uint8_t> uses_;                          // [lanes][kv_blocks], up to kShareFrom
  std::vector<std::atomic<int64_t>> states_;           // [buffers][kv_blocks]
  std::vector<std::atomic<int64_t>> tasks_left_;       // by slot
};

}  // namespace equitile
