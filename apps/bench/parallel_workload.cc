#include "apps/bench/parallel_workload.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/exec/token_rows.h"
#include "equitile/exec/verification.h"
#include "equitile/kernel/reference/attention_reference.h"

namespace equitile {
namespace {

constexpr int64_t kFillTokens = 16;     // per task
constexpr int64_t kQueriesToCheck = 2;  // per rank
constexpr double kLargestValue = 1.74;  // of NumberAt

// Uniform, of variance 1; by index. A hash is enough here, and many times faster than the
// generator that results depend on.
float NumberAt(uint64_t tensor, uint64_t index) {
  const uint64_t bits = MixBits(index * 4 + tensor + 1);
  return (static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f) * 3.4641016f;
}

}  // namespace

ParallelWorkload::ParallelWorkload(const LaneMasks& masks, const PlanOptions& options,
                                   int64_t head_dim, int32_t rank, DType wire, Compute compute,
                                   ThreadPool& pool)
    : masks_(masks),
      problem_(ProblemFor(masks, options)),
      head_dim_(head_dim),
      wire_(wire),
      compute_(compute),
      home_(HomeMap(problem_), problem_.lanes, rank) {
  const BlockGrid& grid = masks.blocks().grid();
  if (grid.q_tokens != grid.kv_tokens) {
    throw InputError("a mask of {} queries and {} keys: self-attention has as many of both",
                     grid.q_tokens, grid.kv_tokens);
  }
  const int64_t row = problem_.lanes.heads * head_dim;
  for (uint64_t tensor = 0; tensor < 3; ++tensor) Fill(tensor, pool);
  out_ = AlignedBuffer<float>::Zeroed(home_.Count() * row);
  auto view = [&](size_t tensor) {
    return home_.Input(inputs_[tensor].data(), head_dim, row, head_dim);
  };
  call_.layer = 0;
  call_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  call_.q = view(0);
  call_.k = view(1);
  call_.v = view(2);
  call_.out = out_.data();
}

void ParallelWorkload::Fill(uint64_t tensor, ThreadPool& pool) {
  const int64_t row = problem_.lanes.heads * head_dim_;
  AlignedBuffer<float>& values = inputs_[tensor];
  values = AlignedBuffer<float>(home_.Count() * row);
  pool.ParallelFor(CeilDiv(home_.Count(), kFillTokens), [&](int64_t task, int) {
    const int64_t end = std::min(home_.Count(), (task + 1) * kFillTokens);
    for (int64_t i = task * kFillTokens; i < end; ++i) {
      const auto [item, token] = home_.TokenOf(i);
      const int64_t index = (item * problem_.grid.q_tokens + token) * row;
      for (int64_t d = 0; d < row; ++d)
        values[i * row + d] = NumberAt(tensor, static_cast<uint64_t>(index + d));
    }
  });
}

// What rounding to bf16 on the way may change in the average `want` of values, beyond what f32
// does. A rounding errs by at most u = 2^-9 of its number. In the score of a key every product errs
// by two of them; with the products independent that is u times the root of the sum of their
// squares
// (`product_norm`, the largest of all keys), and a relative error of the key's weight, which moves
// the output by that times weight times the distance of value and output. The values err by u
// themselves. Over keys these errors are independent: sums are roots of sums of squared weights
// (`weight_norm`), six sigmas of them. The output is rounded once more.
double Bf16Bound(double product_norm, double weight_norm, double want) {
  constexpr double kUnit = 0x1p-9, kSigmas = 6;
  return kUnit * (kSigmas * weight_norm * (2 * product_norm + 1) * kLargestValue + std::abs(want));
}

// What rounding to integers may change in the output of one query [dims] over keys and values
// [keys][dims]: as the kernel's own tests allow it, and 2^-15 of the largest value for what
// travels.
std::vector<double> IntegerBounds(std::span<const float> query, std::span<const float> k,
                                  std::span<const float> v, float scale, Compute compute) {
  const int64_t dims = std::ssize(query), keys = std::ssize(k) / dims;
  const BlockGrid grid{.q_tokens = 1, .kv_tokens = keys, .block_tokens = kMaxBlockTokens};
  const Lanes lanes{.batch = 1, .heads = 1};
  const AttentionRows rows = AttentionRows::Dense(lanes, grid);
  std::vector<float> out(query.size());
  AttentionArgs args;
  args.lanes = lanes;
  args.grid = grid;
  args.head_dim = dims;
  args.scale = scale;
  args.rows = &rows;
  args.q = ConstView(query.data(), {1, 1, 1, dims});
  args.k = ConstView(k.data(), {1, keys, 1, dims});
  args.v = ConstView(v.data(), {1, keys, 1, dims});
  args.compute = compute;
  args.out = View(out.data(), Shape{1, 1, 1, dims});
  std::vector<double> bounds = ReferenceAttentionRow(args, 0).out_tolerance;
  for (double& bound : bounds) bound += 0x1p-15 * kLargestValue;
  return bounds;
}

// The largest difference of one query's output, in units of what it may be.
double ParallelWorkload::ErrorOf(int64_t lane, int64_t position, const int32_t* order) const {
  const int64_t heads = problem_.lanes.heads, tokens = problem_.grid.q_tokens;
  const int64_t item = problem_.lanes.BatchOf(lane), head = problem_.lanes.HeadOf(lane);
  auto token_at = [&](int64_t p) { return order != nullptr ? order[p] : p; };
  auto number = [&](uint64_t tensor, int64_t token, int64_t dim) {
    const int64_t index = ((item * tokens + token) * heads + head) * head_dim_ + dim;
    return static_cast<double>(NumberAt(tensor, static_cast<uint64_t>(index)));
  };
  const int64_t query = token_at(position);
  std::vector<double> scores, sum(static_cast<size_t>(head_dim_), 0);
  std::vector<int64_t> keys;
  masks_.blocks().ForEachKept(lane, position / problem_.grid.block_tokens, [&](int64_t block) {
    const Range positions = problem_.grid.KvBlockTokens(block);
    for (int64_t p = positions.begin; p < positions.end; ++p) keys.push_back(token_at(p));
  });
  double largest = 0, product_norm = 0;
  for (int64_t key : keys) {
    double score = 0, squares = 0;
    for (int64_t d = 0; d < head_dim_; ++d) {
      const double product = number(0, query, d) * number(1, key, d);
      score += product;
      squares += product * product;
    }
    scores.push_back(score * static_cast<double>(call_.scale));
    largest = std::max(largest, std::abs(scores.back()));
    product_norm = std::max(product_norm, std::sqrt(squares) * static_cast<double>(call_.scale));
  }
  std::vector<double> rounding(static_cast<size_t>(head_dim_), 0.0);
  if (compute_ != Compute::kF32 && !keys.empty()) {
    const auto row = [&](uint64_t tensor, int64_t token, std::vector<float>& to) {
      for (int64_t d = 0; d < head_dim_; ++d)
        to.push_back(static_cast<float>(number(tensor, token, d)));
    };
    std::vector<float> q, k, v;
    row(0, query, q);
    for (int64_t key : keys) row(1, key, k), row(2, key, v);
    rounding = IntegerBounds(q, k, v, call_.scale, compute_);
  }
  double total = 0, weight_squares = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    total += weight;
    weight_squares += weight * weight;
    for (int64_t d = 0; d < head_dim_; ++d)
      sum[static_cast<size_t>(d)] += weight * number(2, keys[i], d);
  }
  const float* got = out_.data() + (home_.RowOf(item, query) * heads + head) * head_dim_;
  // Norms of rows of variance 1.
  const double max_score = std::max(largest, std::sqrt(static_cast<double>(head_dim_)));
  const double bound = SplitRowBound(head_dim_, std::ssize(keys) + 1, problem_.ranks, max_score,
                                     kLargestValue, compute_);
  double error = 0;
  for (int64_t d = 0; d < head_dim_; ++d) {
    const double want = total > 0 ? sum[static_cast<size_t>(d)] / total : 0;
    const double wire = wire_ == DType::kBF16 && total > 0
                            ? Bf16Bound(product_norm, std::sqrt(weight_squares) / total, want)
                            : 0;
    const double off = std::abs(static_cast<double>(got[d]) - want);
    error = std::max(
        error, std::isfinite(off) ? off / (bound + wire + rounding[static_cast<size_t>(d)]) : 1e30);
  }
  return error;
}

void ParallelWorkload::Check(Communicator& comm, const Itinerary& part,
                             const std::string& planner) const {
  const LaneOrders orders(problem_);
  double worst = 0;
  for (int64_t i = 0; i < std::min(kQueriesToCheck, home_.Count()); ++i) {
    const auto [item, token] = home_.TokenOf(EvenPart(home_.Count(), i, kQueriesToCheck).end - 1);
    const int64_t lane = problem_.lanes.Lane(item, (part.rank * 7 + i * 3) % problem_.lanes.heads);
    const int32_t* order = orders.Of(lane);
    int64_t position = token;
    if (order != nullptr)
      position = std::find(order, order + problem_.grid.q_tokens, token) - order;
    worst = std::max(worst, ErrorOf(lane, position, order));
  }
  comm.AllReduce(std::span(&worst, 1), Reduce::kMax);
  if (worst > 1)
    throw Error("[bench] {}: wrong answer, off by {:.3g} times what {} may be; nothing was timed",
                planner, worst,
                compute_ != Compute::kF32 ? ComputeName(compute_) : DTypeName(wire_));
}

}  // namespace equitile
