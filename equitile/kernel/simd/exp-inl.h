// 2^x for vectors: the exponential of the softmax, and what other activations are made of.
#if defined(EQUITILE_KERNEL_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_EXP_INL_H_
#undef EQUITILE_KERNEL_EXP_INL_H_
#else
#define EQUITILE_KERNEL_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// max(low, x) that keeps a NaN in x. x86 returns its second operand when either is NaN; elsewhere
// Max may drop it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ClampLow(D d, V low, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  (void)d;
  return hn::Max(low, x);
#else
  (void)d;
  return hn::IfThenElse(hn::Lt(x, low), low, x);
#endif
}

// 2^x for x <= 127, at most 2 ulp off while the result is normal (exp_test measures it); exactly 1
// at 0; exactly 0 for x < -126.5, also for -inf; NaN stays NaN.
//
// n = round(x) comes from adding 1.5 * 2^23 + 127, which leaves n + 127 in the low bits: shifted
// left they are the float 2^n, or 0 when x was clamped to -127. Multiplying by it, instead of
// adding n to the exponent as an integer, keeps NaN a NaN. The polynomial is a minimax fit on
// [-1/2, 1/2] of the error in ulp, with p(0) = 1. Degree 6 would halve the error and costs one more
// multiply-add of about thirteen operations. Where multiply and add round separately (SSE4,
// portable) degree 5 gives 2.04 ulp, so they take degree 6.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  x = ClampLow(d, hn::Set(d, -127.0f), x);
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));
#if HWY_NATIVE_FMA
  V p = hn::Set(d, 0.0013225697912275791f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.009671816602349281f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.05550885200500488f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022231996059418f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693146824836731f));
#else
  V p = hn::Set(d, 0.00015291997988242656f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013390980893746018f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618652053177357f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.05550359562039375f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022646248340607f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471824645996f));
#endif
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const V two_to_n = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  return hn::Mul(p, two_to_n);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_EXP_INL_H_
