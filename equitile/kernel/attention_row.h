// One row of block-sparse attention on one thread: the part of the attention kernel that sees SIMD.
// Internal to the room; callers use attention.h, which cuts calls into rows and hands them to
// threads.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/function_ref.h"
#include "equitile/kernel/attention.h"
#include "equitile/kernel/strips.h"

namespace equitile {

struct RowTask {
  const AttentionArgs* args = nullptr;
  int64_t lane = 0;
  int64_t q_block = 0;
  std::span<const int32_t> kv_blocks;
  const float* const* k_strips = nullptr;  // of this lane, by strip
  const float* const* v_strips = nullptr;
  FunctionRef<void()> tick;  // called every few dozen microseconds; may be empty
};

int64_t RowScratchFloats(int64_t head_dim);
void ComputeRow(const RowTask& task, float* scratch);

}  // namespace equitile
