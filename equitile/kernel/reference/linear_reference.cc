#include "equitile/kernel/reference/linear_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "equitile/base/error.h"
#include "equitile/kernel/rounding.h"

namespace equitile {
namespace {

constexpr double kUnit = 0x1p-24;
// Errors of sums are near normal; tests look at up to 10^7 of them, so five deviations would be
// seen, eight never.
constexpr double kSigmas = 8.0;
// The steepest slope of any activation: GELU's near x = 1.4 (1.129).
constexpr double kSteepest = 1.13;

double Rounded(double x, WeightType type) {
  return type == WeightType::kBF16 ? ToFloat(FromFloat<Bf16>(static_cast<float>(x))) : x;
}

// What rounding to integers may do to a sum of products. Every operand errs by up to half a step,
// evenly, so by a variance of a twelfth of its square.
double RoundingError(const ConstView& weights, const ConstView& x, int64_t token, int64_t column,
                     Compute compute) {
  double x_most = 0.0, w_most = 0.0, x_squares = 0.0, w_squares = 0.0;
  const int64_t in = weights.Extent(1);
  for (int64_t i = 0; i < in; ++i) {
    const double a = x.Load(token, i), w = weights.Load(column, i);
    x_most = std::max(x_most, std::fabs(a));
    w_most = std::max(w_most, std::fabs(w));
    x_squares += a * a;
    w_squares += w * w;
  }
  const double x_variance = std::pow(x_most / RoundingTop(compute), 2) / 12.0,
               w_variance = std::pow(w_most / RoundingTop(compute), 2) / 12.0;
  return kSigmas * std::sqrt(x_variance * w_squares + w_variance * x_squares +
                             static_cast<double>(in) * x_variance * w_variance);
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

float RoundedLinear(const ConstView& weights, const ConstView& x, int64_t token, int64_t column,
                    Compute compute) {
  const auto scale = [&](const ConstView& rows, int64_t row) {
    float most = 0.0f;
    for (int64_t i = 0; i < rows.Extent(1); ++i)
      most = std::max(most, std::fabs(rows.Load(row, i)));
    return ScaleFor(std::bit_cast<uint32_t>(most), compute);
  };
  const RoundingScale x_scale = scale(x, token), w_scale = scale(weights, column);
  const auto rounded = [](float value, const RoundingScale& by) {
    return static_cast<int64_t>(std::nearbyint(value * by.inverse));
  };
  float sum = 0.0f;
  int64_t part = 0;
  const int64_t in = weights.Extent(1);
  for (int64_t i = 0; i < in; ++i) {
    part += rounded(x.Load(token, i), x_scale) * rounded(weights.Load(column, i), w_scale);
    EQ_CHECK(part >= INT32_MIN && part <= INT32_MAX, "a sum of {} leaves int32", part);
    if ((i + 1) % PartInputs(compute) != 0 && i + 1 < in) continue;
    sum += static_cast<float>(part);
    part = 0;
  }
  return sum * w_scale.scale * x_scale.scale;
}

LinearReference ReferenceLinear(const LinearArgs& args, const ConstView& weights,
                                const ConstView& x, int64_t token, int64_t column) {
  const int64_t in = weights.Extent(1);
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < in; ++i) {
    const double product = static_cast<double>(x.Load(token, i)) *
                           Rounded(weights.Load(column, i), args.weights.type());
    sum += product;
    squares += product * product + sum * sum;
  }
  double error = kSigmas * kUnit * std::sqrt(squares) + static_cast<double>(in) * 0x1p-149;
  if (IsInteger(args.weights.type())) {
    error += RoundingError(weights, x, token, column, ComputeOf(args.weights.type()));
  }

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
