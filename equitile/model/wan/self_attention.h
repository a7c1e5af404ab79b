// The one place where a transformer leaves its home tokens: self-attention, which sees the tokens
// of all ranks. The transformer calls it and does not know who computes which rows, or where.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {

// One call holds all guidance passes: batch item = pass, the conditional one first.
// q, k, v: producers of rows [count][head_dim] of lane (batch item, head), for tokens at home only,
// numbered within their batch item; norm and rotation happen inside. out: [home
// tokens][heads][head_dim], the home tokens of all batch items one after the other (the (batch,
// token) line).
// skipped: heads, ascending, that nobody asks for: `out` has only the others, one beside the other,
// and there are no values of them.
struct SelfAttentionCall {
  int32_t step = 0, layer = 0;  // counted from 0
  double sigma = 0;             // the noise level of the step
  float scale = 0.0f;
  RowProducer q, k, v;
  float* out = nullptr;
  std::span<const int64_t> skipped = {};
};
using SelfAttention = FunctionRef<void(const SelfAttentionCall& call)>;

// A layer of a step before its queries, keys and values are made.
struct ComingLayer {
  int32_t step = 0, layer = 0;  // counted from 0
  double sigma = 0;
};
// Heads that the layer does without, ascending: those that are known to attend to nothing in any
// pass. The same on every rank.
using SkippedHeadsOf = FunctionRef<std::vector<int64_t>(const ComingLayer& layer)>;

}  // namespace equitile
