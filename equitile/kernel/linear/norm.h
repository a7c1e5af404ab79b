// Norms over the channels of a token. They are written as producers of rows, so that a linear layer
// or attention's packing calls them for the tokens it is about to read.
#pragma once

#include <cstdint>

#include "equitile/kernel/linear/linear.h"

namespace equitile {

// Widths are multiples of this: every target's vectors fill them.
inline constexpr int64_t kNormStep = 8;

// All functions here: a token's result depends on its own row and the SIMD target only. Sums run in
// at least 16 chains that are added as a tree; the variance is that of the differences from the
// mean, so a large mean costs nothing.
struct LayerNorm {
  const float* x = nullptr;  // [tokens][width]
  int64_t width = 0;
  float eps = 0.0f;              // under the root
  const float* scale = nullptr;  // [width]: the affine weight, or 1 + modulation; null: 1
  const float* shift = nullptr;  // [width]; null: 0
};

// rows [count][width] = (x - mean) / sqrt(var + eps) * scale + shift of tokens first_token, ...
void LayerNormRows(const LayerNorm& norm, int64_t first_token, int64_t count, float* rows);

// inverse[i] = 1 / sqrt(mean(x^2) + eps) of `count` rows [width] that lie `stride` floats apart.
void InverseRms(const float* x, int64_t stride, int64_t width, float eps, int64_t count,
                float* inverse);

// x[i] = activation(x[i]), n values; the same bits as in a linear layer's epilogue.
void Activate(Activation activation, int64_t n, float* x);

}  // namespace equitile
