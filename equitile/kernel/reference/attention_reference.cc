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

// What a row attends to: the tokens of its kept blocks, then the means of those that it skips.
struct Keys {
  std::vector<int64_t> tokens;
  std::vector<size_t> block;             // [tokens], number in the row's list
  std::vector<double> k, v;              // [keys][head_dim], of tokens and means
  std::vector<double> k_error, v_error;  // [keys][head_dim], absolute; 0 of tokens
  std::vector<double> log_count;         // [keys], of the tokens that each stands for
  // [keys] of integers, what one of them is worth; 0 of means, and in f32.
  std::vector<double> k_unit, v_unit;
  std::vector<double> center;  // [head_dim]: what keys were rounded without

  bool IsToken(size_t key) const { return key < tokens.size(); }
  size_t Count() const { return log_count.size(); }
};

bool Skips(const AttentionArgs& args, int64_t row, int32_t block) {
  const AttentionRows::Row r = args.rows->rows[static_cast<size_t>(row)];
  if (!args.tails.Has(r.lane)) return false;
  if (args.tails.kept != nullptr) return !args.tails.kept->Get(r.lane, r.q_block, block);
  return std::ranges::count(args.rows->KvBlocks(row), block) == 0;
}

// The means over the tokens [tokens][head_dim] in x, and how far f32 may be off.
void AddMean(const std::vector<double>& x, size_t dims, std::vector<double>& mean,
             std::vector<double>& error) {
  const auto n = static_cast<double>(x.size() / dims);
  for (size_t dim = 0; dim < dims; ++dim) {
    double sum = 0.0, magnitude = 0.0;
    for (size_t i = dim; i < x.size(); i += dims) {
      sum += x[i];
      magnitude += std::fabs(x[i]);
    }
    mean.push_back(sum / n);
    error.push_back((kSigmas * std::sqrt(n) + 2.0) * kUnit * magnitude / n);
  }
}

bool Rounds(const AttentionArgs& args) {
  return args.compute != Compute::kF32 && args.masses == nullptr;
}

// The unit of each token of x [tokens][dims], less the center.
std::vector<double> UnitsOf(std::span<const double> x, std::span<const double> center,
                            int32_t top) {
  std::vector<double> units;
  for (size_t at = 0; at < x.size(); at += center.size()) {
    double largest = kSmallestToken;
    for (size_t i = 0; i < center.size(); ++i)
      largest = std::max(largest, std::fabs(x[at + i] - center[i]));
    units.push_back(largest / top);
  }
  return units;
}

// How far a weight in integers is off, relative: by its polynomial (attention_int_weights-inl.h);
// of int8 by half a step of its z, 1 / 128 of a power of two (attention_short_weights-inl.h).
double WeightError(Compute compute) { return compute == Compute::kInt8 ? 5.5e-3 : 8e-5; }

// What rounding the weights of a row's keys does to its output, absolute and not yet divided by
// the sum: of weights that become 0 and of the others, these squared.
struct WeightRounding {
  std::vector<double> lost, squares;  // [head_dim]
};
WeightRounding RoundWeights(const AttentionArgs& args, const Keys& keys,
                            std::span<const double> weight) {
  const auto dims = static_cast<size_t>(args.head_dim);
  WeightRounding result = {std::vector<double>(dims, 0.0), std::vector<double>(dims, 0.0)};
  if (!Rounds(args)) return result;
  constexpr size_t kChunk = 128;
  for (size_t first = 0; first < keys.tokens.size(); first += kChunk) {
    const size_t end = std::min(first + kChunk, keys.tokens.size());
    double top = 0.0;
    for (size_t j = first; j < end; ++j) top = std::max(top, weight[j] * keys.v_unit[j]);
    const double unit = 1.02 * top / WeightTop(args.compute);
    for (size_t j = first; j < end; ++j) {
      const bool lost = weight[j] * keys.v_unit[j] < 0.51 * unit;
      const double error = lost ? weight[j] * keys.v_unit[j] : unit / std::sqrt(12.0);
      for (size_t x = 0; x < dims; ++x) {
        const double value = std::fabs(keys.v[j * dims + x]) / keys.v_unit[j] + 1.0;
        if (lost) {
          result.lost[x] += error * value;
        } else {
          result.squares[x] += error * value * error * value;
        }
        // The value's own rounding.
        const double own = weight[j] * keys.v_unit[j];
        result.squares[x] += own * own / 12.0;
      }
    }
  }
  return result;
}

Keys KeysOf(const AttentionArgs& args, int64_t row) {
  const int64_t lane = args.rows->rows[static_cast<size_t>(row)].lane;
  const auto dims = static_cast<size_t>(args.head_dim);
  auto tokens_of = [&](int32_t block) {
    std::vector<int64_t> tokens;
    const Range positions = args.grid.KvBlockTokens(block);
    for (int64_t p = positions.begin; p < positions.end; ++p)
      tokens.push_back(TokenAt(args.kv_order, lane, p));
    return tokens;
  };
  Keys keys;
  for (int32_t block : args.rows->KvBlocks(row)) {
    const std::vector<int64_t> tokens = tokens_of(block);
    keys.block.insert(keys.block.end(), tokens.size(),
                      keys.block.empty() ? 0 : keys.block.back() + 1);
    keys.tokens.insert(keys.tokens.end(), tokens.begin(), tokens.end());
  }
  keys.k = Gather(args.k.view, args.lanes, lane, keys.tokens);
  keys.v = Gather(args.v.view, args.lanes, lane, keys.tokens);
  keys.k_error.assign(keys.k.size(), 0.0);
  keys.v_error = keys.k_error;
  keys.log_count.assign(keys.tokens.size(), 0.0);
  keys.center.assign(dims, 0.0);
  if (Rounds(args)) {
    const std::vector<double> none(dims, 0.0);
    const float* center = args.KCenter(lane);
    if (center != nullptr) keys.center.assign(center, center + dims);
    keys.k_unit = UnitsOf(keys.k, keys.center, KeyTop(args.head_dim, args.compute));
    keys.v_unit = UnitsOf(keys.v, none, ValueTop(args.compute));
    for (double& unit : keys.v_unit) unit *= 1.011;  // Log2FromAbove
  }
  for (int32_t block = 0; block < args.grid.KvBlocks(); ++block) {
    if (!Skips(args, row, block)) continue;
    const std::vector<int64_t> tokens = tokens_of(block);
    AddMean(Gather(args.k.view, args.lanes, lane, tokens), dims, keys.k, keys.k_error);
    AddMean(Gather(args.v.view, args.lanes, lane, tokens), dims, keys.v, keys.v_error);
    keys.log_count.push_back(std::log(static_cast<double>(tokens.size())));
  }
  return keys;
}

// Adds one of n queries' share to the masses of the kept blocks. weight, weight_error: [keys], not
// normalised; sum_error: relative.
void AddMasses(const Keys& keys, std::span<const double> weight,
               std::span<const double> weight_error, double sum, double sum_error, int64_t n,
               AttentionReference& result) {
  // The block's own chain, its parts' factors, the chain over queries.
  const double own = kUnit * (kSigmas * (16.0 + std::sqrt(static_cast<double>(n))) + 4 * kExpUlps);
  const double share = 1.0 / (sum * static_cast<double>(n));
  for (size_t j = 0; j < keys.tokens.size(); ++j) {
    result.masses[keys.block[j]] += weight[j] * share;
    result.mass_tolerance[keys.block[j]] +=
        (2.0 * weight_error[j] + weight[j] * (sum_error + own)) * share;
  }
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
  const Keys keys = KeysOf(args, row);

  AttentionReference result;
  result.out.assign(static_cast<size_t>(queries * d), 0.0);
  result.out_tolerance.assign(static_cast<size_t>(queries * d), 0.0);
  result.lse.assign(static_cast<size_t>(queries), -std::numeric_limits<double>::infinity());
  result.lse_tolerance.assign(static_cast<size_t>(queries), 0.0);
  result.masses.assign(args.rows->KvBlocks(row).size(), 0.0);
  result.mass_tolerance.assign(result.masses.size(), kFlushed);
  std::vector<double> score(keys.Count()), score_error(keys.Count());
  const std::vector<double> none(dims, 0.0);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t q_token = QueryToken(args, row, i);
    const std::vector<double> q = Gather(args.q.view, args.lanes, r.lane, std::span(&q_token, 1));
    const double q_unit = Rounds(args) ? UnitsOf(q, none, KeyTop(d, args.compute))[0] : 0.0;
    double top = -std::numeric_limits<double>::infinity(), top_error = 0.0, center = 0.0;
    for (double x : keys.center) center += x * x;
    for (size_t j = 0; j < keys.Count(); ++j) {
      double dot = 0.0, magnitude = 0.0, carried = 0.0, rounded = 0.0;
      for (size_t x = 0; x < dims; ++x) {
        const double product = q[x] * keys.k[j * dims + x];
        dot += product;
        magnitude += std::fabs(product);
        carried += q[x] * q[x] * keys.k_error[j * dims + x] * keys.k_error[j * dims + x];
        const double k = keys.k[j * dims + x] - keys.center[x];
        const double k_unit = Rounds(args) && keys.IsToken(j) ? keys.k_unit[j] : 0.0;
        rounded += (q[x] * q[x] * k_unit * k_unit + k * k * q_unit * q_unit) / 12.0 +
                   k_unit * k_unit * q_unit * q_unit / 144.0;
      }
      double bias = keys.log_count[j];
      if (args.bias.data != nullptr && keys.IsToken(j)) {
        bias = args.bias.data[batch * args.bias.batch_stride + head * args.bias.head_stride +
                              q_token * args.bias.q_stride + keys.tokens[j]];
      }
      score[j] = dot * args.scale + bias;
      score_error[j] = (kSigmas * std::sqrt(static_cast<double>(d)) * kUnit * magnitude +
                        std::sqrt(carried) + kSigmas * std::sqrt(rounded)) *
                       args.scale;
      if (std::isfinite(bias)) score_error[j] += 4.0 * kUnit * std::fabs(bias);
      if (score[j] > top || std::isnan(score[j])) top = score[j], top_error = score_error[j];
    }
    // weight_error: absolute, of the unnormalised weight. Random parts of different keys add up in
    // quadrature; the exponential's own error need not be random and adds up as it is.
    double sum = 0.0, random = 0.0;
    for (size_t j = 0; j < keys.Count(); ++j) {
      const double weight = std::isinf(score[j]) && score[j] < 0 ? 0.0 : std::exp(score[j] - top);
      const double argument = weight == 0.0 ? 0.0 : top - score[j];
      sum += weight;
      score_error[j] = weight * (std::expm1(score_error[j]) + 2.0 * kUnit * argument) + kFlushed;
      random += score_error[j] * score_error[j];
      score[j] = weight;
    }
    if (sum == 0.0) continue;
    const double chain = kSigmas * std::sqrt(static_cast<double>(keys.Count())) * kUnit;
    const double polynomial = Rounds(args) ? WeightError(args.compute) : 0.0;
    const double sum_error =
        std::sqrt(random) / sum + chain + kExpUlps * kUnit + polynomial;  // relative
    AddMasses(keys, score, score_error, sum, sum_error, queries, result);
    const double log_sum = std::log(sum);
    result.lse[static_cast<size_t>(i)] = top + log_sum;
    result.lse_tolerance[static_cast<size_t>(i)] =
        sum_error + top_error + 4.0 * kUnit * (std::fabs(top) + std::fabs(log_sum) + 1.0) +
        kSigmas * q_unit * std::sqrt(center / 12.0) * args.scale;
    const WeightRounding rounding = RoundWeights(args, keys, score);
    std::vector<double> magnitude(dims, 0.0), carried(dims, 0.0);
    double* out = result.out.data() + i * d;
    for (size_t j = 0; j < keys.Count(); ++j) {
      for (size_t x = 0; x < dims; ++x) {
        const double value = keys.v[j * dims + x], error = keys.v_error[j * dims + x];
        out[x] += score[j] * value;
        magnitude[x] += score[j] * std::fabs(value);
        carried[x] +=
            score_error[j] * value * score_error[j] * value + score[j] * error * score[j] * error;
      }
    }
    for (size_t x = 0; x < dims; ++x) {
      const double own = (std::sqrt(carried[x]) + (chain + kExpUlps * kUnit) * magnitude[x] +
                          kSigmas * std::sqrt(rounding.squares[x]) + rounding.lost[x] +
                          polynomial * magnitude[x]) /
                         sum;
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
