#include "equitile/kernel/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr double kUnit = 0x1p-24;
// Errors of sums are near normal; a bench looks at up to 10^7 of them, so five deviations would be
// seen, eight never.
constexpr double kSigmas = 8.0;
constexpr double kExpUlps = 4.0;       // units of 2^-24: 2 ulp of the exponential
constexpr double kFlushed = 0x1p-125;  // f32 has no smaller normal numbers

int64_t TokenAt(std::span<const int32_t* const> order, int64_t lane, int64_t position) {
  const int32_t* map = order.empty() ? nullptr : order[static_cast<size_t>(lane)];
  return map ? map[position] : position;
}

// The tokens of one lane as doubles, [tokens][head_dim]: converted once, not once per use.
std::vector<double> Gather(const ConstView& view, const Lanes& lanes, int64_t lane,
                           std::span<const int64_t> tokens) {
  std::vector<double> rows;
  rows.reserve(tokens.size() * static_cast<size_t>(view.Extent(3)));
  for (int64_t token : tokens) {
    for (int64_t x = 0; x < view.Extent(3); ++x)
      rows.push_back(view.Load(lanes.BatchOf(lane), token, lanes.HeadOf(lane), x));
  }
  return rows;
}

// Rounding of the output to its storage type.
double StorageUnit(DType dtype) {
  return dtype == DType::kF32 ? 0.0 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}

}  // namespace

int64_t QueryToken(const AttentionArgs& args, int64_t row, int64_t i) {
  const AttentionRows::Row r = args.rows->rows[static_cast<size_t>(row)];
  return TokenAt(args.q_order, r.lane, args.grid.QBlockTokens(r.q_block).begin + i);
}

AttentionReference ReferenceAttentionRow(const AttentionArgs& args, int64_t row) {
  const AttentionRows::Row r = args.rows->rows[static_cast<size_t>(row)];
  const int64_t batch = args.lanes.BatchOf(r.lane), head = args.lanes.HeadOf(r.lane),
                d = args.head_dim;
  const auto dims = static_cast<size_t>(d);
  const int64_t queries = args.grid.QBlockTokens(r.q_block).size();
  std::vector<int64_t> keys;
  for (int32_t block : args.rows->KvBlocks(row)) {
    const Range tokens = args.grid.KvBlockTokens(block);
    for (int64_t p = tokens.begin; p < tokens.end; ++p)
      keys.push_back(TokenAt(args.kv_order, r.lane, p));
  }

  const std::vector<double> k = Gather(args.k.view, args.lanes, r.lane, keys),
                            v = Gather(args.v.view, args.lanes, r.lane, keys);

  AttentionReference result;
  result.out.assign(static_cast<size_t>(queries * d), 0.0);
  result.out_tolerance.assign(static_cast<size_t>(queries * d), 0.0);
  result.lse.assign(static_cast<size_t>(queries), -std::numeric_limits<double>::infinity());
  result.lse_tolerance.assign(static_cast<size_t>(queries), 0.0);
  std::vector<double> score(keys.size()), score_error(keys.size());
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t q_token = QueryToken(args, row, i);
    const std::vector<double> q = Gather(args.q.view, args.lanes, r.lane, std::span(&q_token, 1));
    double top = -std::numeric_limits<double>::infinity(), top_error = 0.0;
    for (size_t j = 0; j < keys.size(); ++j) {
      double dot = 0.0, magnitude = 0.0;
      for (size_t x = 0; x < dims; ++x) {
        const double product = q[x] * k[j * dims + x];
        dot += product;
        magnitude += std::fabs(product);
      }
      double bias = 0.0;
      if (args.bias.data != nullptr) {
        bias = args.bias.data[batch * args.bias.batch_stride + head * args.bias.head_stride +
                              q_token * args.bias.q_stride + keys[j]];
      }
      score[j] = dot * args.scale + bias;
      score_error[j] = kSigmas * std::sqrt(static_cast<double>(d)) * kUnit * magnitude * args.scale;
      if (std::isfinite(bias)) score_error[j] += 4.0 * kUnit * std::fabs(bias);
      if (score[j] > top || std::isnan(score[j])) top = score[j], top_error = score_error[j];
    }
    // weight_error: absolute, of the unnormalised weight. Random parts of different keys add up in
    // quadrature; the exponential's own error need not be random and adds up as it is.
    double sum = 0.0, random = 0.0;
    for (size_t j = 0; j < keys.size(); ++j) {
      const double weight = std::isinf(score[j]) && score[j] < 0 ? 0.0 : std::exp(score[j] - top);
      const double argument = weight == 0.0 ? 0.0 : top - score[j];
      sum += weight;
      score_error[j] = weight * (std::expm1(score_error[j]) + 2.0 * kUnit * argument) + kFlushed;
      random += score_error[j] * score_error[j];
      score[j] = weight;
    }
    if (sum == 0.0) continue;
    const double chain = kSigmas * std::sqrt(static_cast<double>(keys.size())) * kUnit;
    const double sum_error = std::sqrt(random) / sum + chain + kExpUlps * kUnit;  // relative
    const double log_sum = std::log(sum);
    result.lse[static_cast<size_t>(i)] = top + log_sum;
    result.lse_tolerance[static_cast<size_t>(i)] =
        sum_error + top_error + 4.0 * kUnit * (std::fabs(top) + std::fabs(log_sum) + 1.0);
    std::vector<double> magnitude(dims, 0.0), carried(dims, 0.0);
    double* out = result.out.data() + i * d;
    for (size_t j = 0; j < keys.size(); ++j) {
      for (size_t x = 0; x < dims; ++x) {
        const double value = v[j * dims + x];
        out[x] += score[j] * value;
        magnitude[x] += score[j] * std::fabs(value);
        carried[x] += score_error[j] * value * score_error[j] * value;
      }
    }
    for (size_t x = 0; x < dims; ++x) {
      const double own = (std::sqrt(carried[x]) + (chain + kExpUlps * kUnit) * magnitude[x]) / sum;
      out[x] /= sum;
      result.out_tolerance[static_cast<size_t>(i) * dims + x] =
          own + std::fabs(out[x]) * (sum_error + 4.0 * kUnit + StorageUnit(args.out.dtype())) +
          kFlushed;
    }
  }
  return result;
}

AttentionError CompareWithReference(const AttentionArgs& args, std::span<const int64_t> rows) {
  AttentionError worst;
  auto take = [&](double got, double want, double tolerance, int64_t row, int64_t token,
                  int64_t dim) {
    double error = std::fabs(got - want);
    if (got == want || (std::isnan(got) && std::isnan(want))) error = 0.0;  // infinities too
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    (dim < 0 ? worst.lse : worst.out) = std::max(dim < 0 ? worst.lse : worst.out, error);
    double fraction = error == 0.0 ? 0.0 : error / tolerance;
    if (std::isnan(fraction)) fraction = std::numeric_limits<double>::infinity();
    if (fraction > worst.worst_fraction || worst.row < 0) {
      worst.worst_fraction = fraction;
      worst.tolerance = tolerance;
      worst.row = row, worst.token = token, worst.dim = dim;
    }
  };
  for (int64_t row : rows) {
    const AttentionReference reference = ReferenceAttentionRow(args, row);
    const int64_t lane = args.rows->rows[static_cast<size_t>(row)].lane;
    for (size_t i = 0; i < reference.lse.size(); ++i) {
      const int64_t token = QueryToken(args, row, static_cast<int64_t>(i));
      if (args.lse != nullptr) {
        take(args.lse[lane * args.grid.q_tokens + token], reference.lse[i],
             reference.lse_tolerance[i], row, token, -1);
      }
      for (int64_t x = 0; x < args.head_dim; ++x) {
        const size_t at = i * static_cast<size_t>(args.head_dim) + static_cast<size_t>(x);
        take(args.out.Load(args.lanes.BatchOf(lane), token, args.lanes.HeadOf(lane), x),
             reference.out[at], reference.out_tolerance[at], row, token, x);
      }
    }
  }
  return worst;
}

}  // namespace equitile
