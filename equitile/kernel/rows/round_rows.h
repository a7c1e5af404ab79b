// Tokens of a linear layer as integers with a scale per token: rounded once per call, before its
// tiles. Internal to the room: linear.cc calls it.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/range.h"
#include "equitile/kernel/compute.h"
#include "equitile/tensor/view.h"

namespace equitile {

// Rows of integers lie this many apart, or a multiple of it, so that whole groups of them can be
// read at the end of a row, where they are 0.
inline constexpr int64_t kRoundedStep = 64;

struct RoundedRows {
  void* numbers = nullptr;  // [tokens][pitch], int16 or int8
  int64_t pitch = 0;        // of the layer's inputs
  float* scales = nullptr;  // [tokens]
};

// x [tokens, n], f32, bf16 or f16, any strides: the inputs `ranges` of a layer one after the other,
// or, where there are none, all of them. Those that are not there become 0. scratch: [n].
void RoundRows(const ConstView& x, std::span<const Range> ranges, Compute compute,
               const RoundedRows& to, float* scratch);

}  // namespace equitile
