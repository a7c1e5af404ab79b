// One row of block-sparse attention on one thread: the part of the attention kernel that sees SIMD.
// Internal to the room; callers use attention.h, which cuts calls into rows and hands them to
// threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/kernel/attention.h"
#include "equitile/kernel/strips.h"

namespace equitile {

// Rows of tokens that the thread will need next. The kernel touches them while it multiplies, a few
// cache lines per register tile, so that short rows do not wait for memory.
struct PrefetchRows {
  std::vector<const void*> rows;
  int64_t row_bytes = 0;
};

struct RowTask {
  const AttentionArgs* args = nullptr;
  int64_t lane = 0;
  int64_t q_block = 0;
  std::span<const int32_t> kv_blocks;
  const float* const* k_strips = nullptr;  // of this lane, by strip
  const float* const* v_strips = nullptr;
  FunctionRef<void(int64_t kv_block)>
      prepare;                         // called before the strips of a block are read; may be empty
  FunctionRef<void()> tick;            // called every few dozen microseconds; may be empty
  const PrefetchRows* next = nullptr;  // may be null
};

int64_t RowScratchFloats(int64_t head_dim);
void ComputeRow(const RowTask& task, float* scratch);

}  // namespace equitile
