// The one place where a transformer leaves its home tokens: self-attention, which sees the tokens
// of all ranks. The transformer calls it and does not know who computes which rows, or where.
#pragma once

#include <cstdint>

#include "equitile/base/function_ref.h"
#include "equitile/kernel/strips.h"

namespace equitile {

// One call holds all guidance passes: batch item = pass, the conditional one first.
// q, k, v: producers of rows [count][head_dim] of lane (batch item, head), for tokens at home only,
// numbered within their batch item; norm and rotation happen inside. out: [home
// tokens][heads][head_dim], the home tokens of all batch items one after the other (the (batch,
// token) line).
struct SelfAttentionCall {
  int32_t step = 0, layer = 0;  // counted from 0
  double sigma = 0;             // the noise level of the step
  float scale = 0.0f;
  RowProducer q, k, v;
  float* out = nullptr;
};
using SelfAttention = FunctionRef<void(const SelfAttentionCall& call)>;

}  // namespace equitile
