// One panel of packed weights: sixteen rows of a matrix become [in][16]. Internal to this part: the
// part of packed_linear.h that sees SIMD, since loading a model is packing it.
#pragma once

#include <cstdint>

#include "equitile/kernel/linear/packed_linear.h"

namespace equitile {

struct PanelRow {
  const void* data = nullptr;  // [in], `stride` elements apart
  int64_t stride = 1;
};

struct PanelRows {
  PanelRow rows[kPanelColumns];
  int64_t count = kPanelColumns;  // the columns beyond are 0
  int64_t in = 0;
  DType dtype = DType::kF32;
};

// to: [in][16], f32 or bf16 (rounded to nearest even). False where a value is NaN or infinite;
// then, too, all values are written.
bool PackPanel(const PanelRows& rows, DType dtype, void* to);

struct IntegerPanel {
  int32_t* words = nullptr;      // [words][16], of two or four inputs
  float* scales = nullptr;       // [16]
  int32_t* part_sums = nullptr;  // [parts][16], of int8
};

// The same, rounded to integers; a column with a value that is not finite becomes NaN. scratch:
// [in][16].
bool PackIntegerPanel(const PanelRows& rows, Compute compute, float* scratch,
                      const IntegerPanel& to);

}  // namespace equitile
