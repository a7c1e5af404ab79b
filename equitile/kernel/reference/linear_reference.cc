#include "equitile/kernel/reference/linear_reference.h"

#include <cmath>
#include <numbers>

namespace equitile {
namespace {

constexpr double kUnit = 0x1p-24;
// Errors of sums are near normal; tests look at up to 10^7 of them, so five deviations would be
// seen, eight never.
constexpr double kSigmas = 8.0;
// The steepest slope of any activation: GELU's near x = 1.4 (1.129).
constexpr double kSteepest = 1.13;

double Rounded(double x, DType dtype) {
  return dtype == DType::kBF16 ? ToFloat(FromFloat<Bf16>(static_cast<float>(x))) : x;
}

// Of the result, to its storage type: half a unit in the last place, or of the smallest number.
double StorageError(double y, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0.0;
    case DType::kBF16:
      return std::fabs(y) * 0x1p-8;
    case DType::kF16:
      return std::fabs(y) * 0x1p-11 + 0x1p-25;
  }
  return 0.0;
}

}  // namespace

double ReferenceActivation(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
  }
  return x;
}

LinearReference ReferenceLinear(const LinearArgs& args, const ConstView& weights,
                                const ConstView& x, int64_t token, int64_t column) {
  const int64_t in = weights.Extent(1);
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < in; ++i) {
    const double product = static_cast<double>(x.Load(token, i)) *
                           Rounded(weights.Load(column, i), args.weights.dtype());
    sum += product;
    squares += product * product + sum * sum;
  }
  double error = kSigmas * kUnit * std::sqrt(squares) + static_cast<double>(in) * 0x1p-149;

  const LinearEpilogue& epilogue = args.epilogue;
  double y = sum;
  if (!epilogue.bias.empty()) {
    y += epilogue.bias[static_cast<size_t>(column)];
    error += kUnit * std::fabs(y);
  }
  if (epilogue.activation != Activation::kNone) {
    error = kSteepest * error + kActivationError * kUnit * std::fabs(y);
    y = ReferenceActivation(epilogue.activation, y);
  }
  if (epilogue.gate.Data() != nullptr) {
    const double gate =
        epilogue.gate.Rank() == 1 ? epilogue.gate.Load(column) : epilogue.gate.Load(token, column);
    y *= gate;
    error = error * std::fabs(gate) + kUnit * std::fabs(y);
  }
  if (epilogue.residual.Data() != nullptr) {
    y += epilogue.residual.Load(token, column);
    error += kUnit * std::fabs(y);
  }
  // Terms of second order: what was rounded is itself a little off.
  error *= 1.0 + 0x1p-20;
  return {y, error + StorageError(y, args.y.dtype())};
}

}  // namespace equitile
