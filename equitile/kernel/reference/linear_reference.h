// A linear layer as one would write it on paper, in double precision: what the kernel is judged by,
// together with how far a right f32 computation may be off.
#pragma once

#include <cstdint>

#include "equitile/kernel/linear/linear.h"

namespace equitile {

// What activation-inl.h promises: for finite x the absolute error is at most this many times 2^-24
// |x| (activation_test measures it).
inline constexpr double kActivationError = 2.5;

double ReferenceActivation(Activation activation, double x);

struct LinearReference {
  double value = 0.0;
  double tolerance = 0.0;
};

// Element (token, column) of the layer `args` over unpacked weights [out, in], rounded here as the
// packed ones were, and rows x [tokens, in]. args.epilogue.residual must hold what the residual was
// before the call; args.y only says how the result is stored.
//
// The tolerance follows the computation, with u = 2^-24. Adding in order, every product and every
// partial sum is rounded, each by at most u of itself; these errors are independent and of mean 0,
// so the sum errs by about u sqrt(sum of squares of products and partial sums), taken kSigmas
// times. Integers add what rounding their operands does, taken likewise. Then each step of the
// epilogue adds its own rounding.
LinearReference ReferenceLinear(const LinearArgs& args, const ConstView& weights,
                                const ConstView& x, int64_t token, int64_t column);

// The sum alone, with integers, rounded and added as the kernel does it: equal bit for bit.
// weights [out, in], x [tokens, in], both finite.
float RoundedLinear(const ConstView& weights, const ConstView& x, int64_t token, int64_t column,
                    Compute compute);

}  // namespace equitile
