// The weights of a linear layer as the kernel reads them: one relocatable range of bytes, header
// and panels, without pointers, in memory that the caller gives. Processes can share it, files can
// hold it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "equitile/base/thread_pool.h"
#include "equitile/tensor/view.h"

namespace equitile {

inline constexpr int64_t kPanelColumns = 16;  // one strip of the multiply-add tile

// Bytes of packed weights [out, in], stored as `dtype` (f32 or bf16). Throws InputError for sizes
// below 1 and for f16.
int64_t PackedLinearBytes(int64_t in, int64_t out, DType dtype);

// weights: [out, in], f32, bf16 or f16, any strides. `to` is 64-byte aligned and at least
// PackedLinearBytes long. bf16 is rounded to nearest even.
void PackLinear(const ConstView& weights, DType dtype, std::span<std::byte> to, ThreadPool& pool);

// Several matrices [out_i, in] on top of each other as one layer in -> sum of out_i (q, k and v of
// one input, say). Returns the first matrix that holds a NaN or an infinity, -1 where none does:
// the values pass by anyway.
int64_t PackLinear(std::span<const ConstView> stacked, DType dtype, std::span<std::byte> to,
                   ThreadPool& pool);

// Packed weights that lie somewhere: a view, cheap to copy. Panel p holds columns (outputs) 16 p ..
// 16 p + 15 as [in][16]; columns beyond `out` are 0.
class PackedLinear {
 public:
  PackedLinear() = default;

  // Throws InputError unless `bytes` begins with packed weights that are all there.
  static PackedLinear View(std::span<const std::byte> bytes);

  int64_t In() const { return in_; }
  int64_t Out() const { return out_; }
  DType dtype() const { return dtype_; }
  int64_t Panels() const { return CeilDiv(out_, kPanelColumns); }
  const void* Panel(int64_t panel) const {
    return panels_ + panel * in_ * kPanelColumns * DTypeBytes(dtype_);
  }

 private:
  const std::byte* panels_ = nullptr;
  int64_t in_ = 0, out_ = 0;
  DType dtype_ = DType::kF32;
};

}  // namespace equitile
