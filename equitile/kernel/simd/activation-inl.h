// Activations on vectors. Both are x * sigmoid(z), so both are one exponential and one division.
#if defined(EQUITILE_KERNEL_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ACTIVATION_INL_H_
#undef EQUITILE_KERNEL_ACTIVATION_INL_H_
#else
#define EQUITILE_KERNEL_ACTIVATION_INL_H_
#endif

#include <limits>

#include "equitile/kernel/simd/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// x / (1 + 2^t). Where 2^t would overflow the quotient is a zero of x's sign.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V DivideByOnePlusExp2(D d, V x, V t) {
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const V power = hn::IfThenElse(hn::Gt(t, hn::Set(d, 127.0f)), infinity, Exp2(d, t));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), power));
}

// The errors below are absolute, for finite x, against the exact function of x (activation_test
// measures them); kActivationError in linear_reference.h holds the bound.

// x sigmoid(x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return DivideByOnePlusExp2(d, x, hn::Mul(x, hn::Set(d, -kLog2E)));
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  constexpr double kScale = -2.0 * 0.79788456080286535588 * 1.4426950408889634074;
  const V inner = hn::MulAdd(hn::Mul(x, x), hn::Set(d, static_cast<float>(kScale * 0.044715)),
                             hn::Set(d, static_cast<float>(kScale)));
  return DivideByOnePlusExp2(d, x, hn::Mul(x, inner));
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ACTIVATION_INL_H_
