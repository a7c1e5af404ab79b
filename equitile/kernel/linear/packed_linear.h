// The weights of a linear layer as the kernel reads them: one relocatable range of bytes, header
// and panels, without pointers, in memory that the caller gives. Processes can share it, files can
// hold it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "equitile/base/thread_pool.h"
#include "equitile/kernel/linear/weight_type.h"
#include "equitile/kernel/rounding.h"
#include "equitile/tensor/view.h"

namespace equitile {

inline constexpr int64_t kPanelColumns = 16;  // one strip of the multiply-add tile

// Bytes of packed weights [out, in]. Throws InputError for sizes below 1.
int64_t PackedLinearBytes(int64_t in, int64_t out, WeightType type);

// weights: [out, in], f32, bf16 or f16, any strides. `to` is 64-byte aligned and at least
// PackedLinearBytes long. bf16 is rounded to nearest even; so are integers, each output with the
// scale that takes its largest weight to RoundingTop.
void PackLinear(const ConstView& weights, WeightType type, std::span<std::byte> to,
                ThreadPool& pool);

// Several matrices [out_i, in] on top of each other as one layer in -> sum of out_i (q, k and v of
// one input, say). Returns the first matrix that holds a NaN or an infinity, -1 where none does:
// the values pass by anyway.
int64_t PackLinear(std::span<const ConstView> stacked, WeightType type, std::span<std::byte> to,
                   ThreadPool& pool);

// Packed weights that lie somewhere: a view, cheap to copy. Panel p holds columns (outputs) 16 p ..
// 16 p + 15; columns beyond `out` are 0. f32 and bf16: [in][16]. Integers: words of 32 bits, of two
// or four inputs, [words][16]; inputs beyond `in` are 0.
class PackedLinear {
 public:
  PackedLinear() = default;

  // Throws InputError unless `bytes` begins with packed weights that are all there.
  static PackedLinear View(std::span<const std::byte> bytes);

  int64_t In() const { return in_; }
  int64_t Out() const { return out_; }
  WeightType type() const { return type_; }
  int64_t Panels() const { return CeilDiv(out_, kPanelColumns); }
  const void* Panel(int64_t panel) const { return panels_ + panel * PanelBytes(in_, type_); }

  // Of integers. Scales of a panel's outputs, [16].
  const float* Scales(int64_t panel) const { return scales_ + panel * kPanelColumns; }
  // Of int8: the sums of a panel's integers over the inputs of one part, [16].
  const int32_t* PartSums(int64_t panel, int64_t part) const {
    return part_sums_ + (panel * CeilDiv(in_, PartInputs(Compute::kInt8)) + part) * kPanelColumns;
  }

  static int64_t PanelBytes(int64_t in, WeightType type) {
    if (!IsInteger(type)) return in * kPanelColumns * WeightBytes(type);
    constexpr int64_t kWordBytes = 4;
    return CeilDiv(in, kWordBytes / WeightBytes(type)) * kPanelColumns * kWordBytes;
  }

 private:
  const std::byte* panels_ = nullptr;
  const float* scales_ = nullptr;
  const int32_t* part_sums_ = nullptr;
  int64_t in_ = 0, out_ = 0;
  WeightType type_ = WeightType::kF32;
};

}  // namespace equitile
