// What becomes of the sums of a linear layer when they leave the register tile: bias, activation,
// gate, residual, the output's type and place.
#if defined(EQUITILE_KERNEL_LINEAR_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_LINEAR_EPILOGUE_INL_H_
#undef EQUITILE_KERNEL_LINEAR_EPILOGUE_INL_H_
#else
#define EQUITILE_KERNEL_LINEAR_EPILOGUE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "equitile/kernel/linear/linear_tile.h"
#include "equitile/kernel/simd/activation-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/pack-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What turns the sums of one panel into output. Works on whole panels; where only some columns are
// wanted, the others are computed beside them and dropped.
class PanelEpilogue {
 public:
  PanelEpilogue() = default;
  PanelEpilogue(const LinearArgs& args, const PanelColumns& wanted)
      : args_(&args),
        begin_(wanted.columns.begin),
        offset_(static_cast<size_t>(begin_ - wanted.panel * kPanelColumns)),
        count_(static_cast<size_t>(wanted.columns.size())) {
    const LinearEpilogue& epilogue = args.epilogue;
    has_bias_ = !epilogue.bias.empty();
    if (has_bias_) std::copy_n(epilogue.bias.data() + begin_, count_, bias_ + offset_);
    has_gate_ = epilogue.gate.Data() != nullptr;
    gate_per_token_ = has_gate_ && epilogue.gate.Rank() == 2;
    if (has_gate_ && !gate_per_token_) {
      Gather(epilogue.gate.Address(begin_), epilogue.gate.dtype(), epilogue.gate.Stride(0), count_,
             gate_ + offset_);
    }
    has_residual_ = epilogue.residual.Data() != nullptr;
    y_direct_ = args.y.dtype() == DType::kF32 && args.y.Stride(1) == 1 && count_ == kStripFloats;
  }

  // Whether sums need nothing but the bias, and lie in y as they do here.
  bool IsPlain() const {
    return y_direct_ && !has_gate_ && !has_residual_ &&
           args_->epilogue.activation == Activation::kNone;
  }
  // The same as Finish for strip `strip` of sums that are still in registers.
  template <size_t kRows, size_t kStrips>
  EQ_TILE void FinishPlain(int64_t first_token, size_t strip, Tile<kRows, kStrips>& tile) const {
    if (has_bias_) {
      EQ_UNROLL
      for (size_t i = 0; i < kStripVecs; ++i) {
        const VF bias = hn::Load(DF(), bias_ + i * kVecFloats);
        EQ_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          VF& c = tile.c[r][strip * kStripVecs + i];
          c = hn::Add(c, bias);
        }
      }
    }
    const int64_t stride = args_->y.Stride(0);
    auto* y = static_cast<float*>(args_->y.Address(first_token, begin_));
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r, y += stride) {
      EQ_UNROLL
      for (size_t i = 0; i < kStripVecs; ++i)
        hn::StoreU(tile.c[r][strip * kStripVecs + i], DF(), y + i * kVecFloats);
    }
  }

  // Touches the output before it is written: lines of y are no neighbours.
  HWY_INLINE void FetchOutput(int64_t first_token, size_t rows) const {
    const char* y = static_cast<const char*>(args_->y.Address(first_token, begin_));
    const int64_t stride = args_->y.Stride(0) * DTypeBytes(args_->y.dtype());
    for (size_t r = 0; r < rows; ++r, y += stride) __builtin_prefetch(y, 1, 3);
  }

  // sums: [rows][16] of tokens first_token, ...
  HWY_NOINLINE void Finish(int64_t first_token, size_t rows, const float* sums) const {
    switch (args_->epilogue.activation) {
      case Activation::kNone:
        return FinishAs<Activation::kNone>(first_token, rows, sums);
      case Activation::kGeluTanh:
        return FinishAs<Activation::kGeluTanh>(first_token, rows, sums);
      case Activation::kSilu:
        return FinishAs<Activation::kSilu>(first_token, rows, sums);
    }
  }

 private:
  template <Activation kActivation>
  HWY_INLINE void FinishAs(int64_t first_token, size_t rows, const float* sums) const {
    const DF d;
    alignas(64) float gate_row[kStripFloats] = {};
    alignas(64) float residual_row[kStripFloats] = {};
    alignas(64) float y_row[kStripFloats];
    for (size_t r = 0; r < rows; ++r, sums += kStripFloats) {
      const int64_t token = first_token + static_cast<int64_t>(r);
      const float* gate = gate_per_token_ ? Row(args_->epilogue.gate, token, gate_row) : gate_;
      const float* residual =
          has_residual_ ? Row(args_->epilogue.residual, token, residual_row) : residual_row;
      void* to = args_->y.Address(token, begin_);
      float* y = y_direct_ ? static_cast<float*>(to) : y_row;
      EQ_UNROLL
      for (size_t i = 0; i < kStripFloats; i += kVecFloats) {
        VF v = hn::LoadU(d, sums + i);
        if (has_bias_) v = hn::Add(v, hn::LoadU(d, bias_ + i));
        if constexpr (kActivation == Activation::kGeluTanh) v = GeluTanh(d, v);
        if constexpr (kActivation == Activation::kSilu) v = Silu(d, v);
        if (has_gate_ && has_residual_) {
          v = hn::MulAdd(v, hn::LoadU(d, gate + i), hn::LoadU(d, residual + i));
        } else if (has_gate_) {
          v = hn::Mul(v, hn::LoadU(d, gate + i));
        } else if (has_residual_) {
          v = hn::Add(v, hn::LoadU(d, residual + i));
        }
        hn::StoreU(v, d, y + i);
      }
      if (!y_direct_) {
        Scatter(y_row + offset_, count_, args_->y.dtype(), args_->y.Stride(1), to);
      }
    }
  }

  // The panel's columns of one row of a [tokens, out] view as [16] floats: where they lie, or
  // converted into `row`.
  HWY_INLINE const float* Row(const ConstView& view, int64_t token, float* row) const {
    const void* from = view.Address(token, begin_);
    if (view.dtype() == DType::kF32 && view.Stride(1) == 1 && count_ == kStripFloats) {
      return static_cast<const float*>(from);
    }
    Gather(from, view.dtype(), view.Stride(1), count_, row + offset_);
    return row;
  }

  const LinearArgs* args_ = nullptr;
  int64_t begin_ = 0;  // first wanted column,
  size_t offset_ = 0;  // its place in the panel,
  size_t count_ = 0;   // and how many
  bool has_bias_ = false, has_gate_ = false, gate_per_token_ = false, has_residual_ = false;
  bool y_direct_ = false;
  alignas(64) float bias_[kStripFloats] = {};
  alignas(64) float gate_[kStripFloats] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_LINEAR_EPILOGUE_INL_H_
