// Rows of block-sparse attention on one thread: the part of the attention kernel that sees SIMD.
// Internal to the room; callers use attention.h, which cuts calls into rows and hands them to
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/kernel/attention.h"
#include "equitile/kernel/strips.h"

namespace equitile {

// Rows of tokens that the thread will need soon. The kernel touches them while it multiplies, a few
// cache lines per register tile, so that packing and short rows do not wait for memory.
struct PrefetchRows {
  std::vector<const void*> rows;
  int64_t row_bytes = 0;
};

// The packed strips of one kv block: pointers to each.
struct BlockStrips {
  const float* const* k = nullptr;
  const float* const* v = nullptr;
};

// A kv block that is needed soon.
struct UpcomingBlock {
  int64_t size = 0;    // strips; 0 after the last block
  BlockStrips strips;  // null if not packed yet
};

// Rows of one lane that keep the same kv blocks: they walk them together.
struct RowTask {
  const AttentionArgs* args = nullptr;
  int64_t lane = 0;
  std::span<const int32_t> rows;  // numbers in args->rows
  std::span<const int32_t> kv_blocks;
  std::span<const int32_t> skipped;  // blocks that count by their means
  LaneMeans means;
  // Called for each kv block, in order, when its first strip is to be read; strips must stay for
  // the chunk after it, which may begin within the block.
  FunctionRef<BlockStrips(int64_t kv_block)> strips;
  // The index-th of the kv blocks, and after them those of the thread's next task. Adds tokens that
  // are still to be packed, unless `add` is null.
  FunctionRef<UpcomingBlock(size_t index, PrefetchRows* add)> upcoming;
  // Adds queries and output of the next task.
  FunctionRef<void(PrefetchRows* add)> next_rows;
  PrefetchRows* soon = nullptr;  // scratch
  FunctionRef<void()> tick;      // called every few dozen microseconds; may be empty
};

// A row is computed in chunks of this many kv strips.
inline constexpr int64_t kChunkStrips = 8;

// Query strips that walk a chunk one after the other, so that K and V come from L2 and not from L3:
// as many as keep their Q and O within 192 KiB, beside the 144 KiB of a chunk at head_dim 128.
// Even, since a register tile may hold two. A task with more walks its kv blocks more than once.
constexpr int64_t GroupStrips(int64_t head_dim) {
  return std::clamp<int64_t>(1536 / head_dim / 2 * 2, 2, kMaxBlockTokens / kStripTokens);
}

// An output from this size on is not in cache when somebody reads it, so it is written past the
// cache: reading its lines first, as plain stores do, would take memory bandwidth that short rows
// need.
inline constexpr int64_t kStreamFloats = int64_t{16} << 20;

// Of a task of this call.
int64_t RowScratchFloats(const AttentionArgs& args);
void ComputeRows(const RowTask& task, float* scratch);

}  // namespace equitile
