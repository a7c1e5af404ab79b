// Linear layers: y = residual + gate * activation(x W^T + bias), each part of it optional, over
// weights that were packed once.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/range.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/linear/packed_linear.h"
#include "equitile/kernel/rows/row_producer.h"
#include "equitile/kernel/workspace.h"
#include "equitile/tensor/view.h"

namespace equitile {

enum class Activation : uint8_t { kNone, kGeluTanh, kSilu };

// Where the rows of x come from: one of the two.
struct LinearInput {
  LinearInput() = default;
  LinearInput(const ConstView& v) : view(v) {}
  LinearInput(RowProducer p) : producer(p) {}

  ConstView view;  // [tokens, inputs], f32, bf16 or f16, any strides
  RowProducer producer;
};

// What happens to x W^T before it is stored, in this order. Absent parts are left out.
struct LinearEpilogue {
  std::span<const float> bias;  // [out]
  Activation activation = Activation::kNone;
  ConstView gate;      // [out] or [tokens, out]
  ConstView residual;  // [tokens, out]; may be the output itself
};

struct LinearArgs {
  PackedLinear weights;  // in -> out
  LinearInput x;
  LinearEpilogue epilogue;
  // The columns to compute, ascending and apart (whole heads, say); empty: all. The cost is in
  // proportion, in steps of 16 columns. Other columns of y are left untouched.
  std::span<const Range> columns;
  // The inputs that x has, ascending and apart, one after the other in its rows; the others count
  // as 0 and cost nothing. Empty: all. One empty range: none, and x is not looked at.
  std::span<const Range> inputs;
  View y;  // [tokens, out], f32, bf16 or f16, any strides; must not overlap x
};

// Every element is one chain of multiply-adds over ascending inputs, so its bits depend only on its
// token's row, its column's weights and the SIMD target: not on threads, on other tokens or columns
// of the call, or on whether x is a view or a producer. Inputs that are left out leave the bits
// that zeros would give: adding 0 * w changes no sum (but the sign of one that is 0 because all its
// products were too small for a float). Throws InputError where shapes do not fit.
void Linear(const LinearArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace equitile
