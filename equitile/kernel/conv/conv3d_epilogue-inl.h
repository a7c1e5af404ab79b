// What happens to the finished sums of a pixel: bias, residual, norm over its channels, SiLU.
#if defined(EQUITILE_KERNEL_CONV3D_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_CONV3D_EPILOGUE_INL_H_
#undef EQUITILE_KERNEL_CONV3D_EPILOGUE_INL_H_
#else
#define EQUITILE_KERNEL_CONV3D_EPILOGUE_INL_H_
#endif

#include <cmath>
#include <cstddef>

#include "equitile/kernel/conv/conv3d.h"
#include "equitile/kernel/simd/activation-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// x: [padded] floats of a pixel with the sum of their squares; gamma: [padded].
template <bool kSilu>
HWY_INLINE void NormPixel(const float* x, float squares, const float* gamma, float root_channels,
                          size_t padded, float* to) {
  const DF d;
  const float norm = std::sqrt(squares);
  const VF scale = hn::Set(d, root_channels / (norm > 1e-12f ? norm : 1e-12f));
  for (size_t i = 0; i < padded; i += kVecFloats) {
    VF v = hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, gamma + i));
    if constexpr (kSilu) v = Silu(d, v);
    hn::StoreU(v, d, to + i);
  }
}

// Writes x = sums + bias + residual (which may be null) and returns the sum of squares. In vectors
// of at most 8, so that the sum has the same chains, and bits, on avx512 as on avx2.
HWY_INLINE float AddPixel(const float* sums, const float* bias, const float* residual,
                          size_t padded, float* to) {
  const hn::CappedTag<float, 8> d;
  using V = hn::Vec<decltype(d)>;
  V squares = hn::Zero(d);
  for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
    V v = hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, bias + i));
    if (residual != nullptr) v = hn::Add(v, hn::LoadU(d, residual + i));
    squares = hn::MulAdd(v, v, squares);
    hn::StoreU(v, d, to + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, squares));
}

class PixelEpilogue {
 public:
  explicit PixelEpilogue(const ConvArgs& args)
      : e_(args.epilogue),
        bias_(args.weights->Bias()),
        gamma_(args.epilogue.gamma.data()),
        padded_(static_cast<size_t>(PaddedChannels(args.weights->Out()))),
        root_channels_(std::sqrt(static_cast<float>(args.weights->Out()))) {}

  // sums: [padded] of output pixel (y, x) of a frame.
  HWY_INLINE void Finish(const float* sums, int64_t frame, int64_t y, int64_t x) const {
    const auto at = [&](const auto& frames) {
      using Pixel = decltype(frames.frames[0] + 0);
      if (frames.frames.empty()) return Pixel{nullptr};
      return frames.frames[static_cast<size_t>(frame)] + y * frames.row_stride +
             x * static_cast<int64_t>(padded_);
    };
    float* out = at(e_.out);
    float* normed = at(e_.normed);
    float* to = out != nullptr ? out : normed;
    const float squares = AddPixel(sums, bias_, at(e_.residual), padded_, to);
    if (normed == nullptr) return;
    if (e_.silu) {
      NormPixel<true>(to, squares, gamma_, root_channels_, padded_, normed);
    } else {
      NormPixel<false>(to, squares, gamma_, root_channels_, padded_, normed);
    }
  }

 private:
  const ConvEpilogue& e_;
  const float* bias_;
  const float* gamma_;
  size_t padded_;
  float root_channels_;
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_CONV3D_EPILOGUE_INL_H_
