#include "equitile/exec/verification.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "equitile/base/rng.h"
#include "equitile/exec/executor.h"
#include "equitile/exec/token_rows.h"
#include "equitile/kernel/rows/short_rows.h"

namespace equitile {
namespace {

constexpr int64_t kRowsToCheck = 64;

float Scale(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void Fill(std::vector<float>& values, int64_t count, uint64_t seed, uint32_t stream,
          ThreadPool& pool) {
  constexpr int64_t kTask = 1 << 14;
  values.resize(static_cast<size_t>(count));
  const Rng rng(seed, stream);
  const float width = std::sqrt(12.0f);  // variance 1
  pool.ParallelFor(CeilDiv(count, kTask), [&](int64_t task, int) {
    for (int64_t i = task * kTask; i < std::min(count, (task + 1) * kTask); ++i)
      values[static_cast<size_t>(i)] = (rng.UniformAt(static_cast<uint64_t>(i)) - 0.5f) * width;
  });
}

// The pool polls while this lives.
class PoolPoll {
 public:
  PoolPoll(ThreadPool& pool, FunctionRef<void()> poll) : pool_(pool) {
    if (poll) pool_.SetPoll([poll] { poll(); });
  }
  ~PoolPoll() { pool_.SetPoll(nullptr); }
  PoolPoll(const PoolPoll&) = delete;
  PoolPoll& operator=(const PoolPoll&) = delete;

 private:
  ThreadPool& pool_;
};

// Of what one rank has at home.
struct Difference {
  double max_error = 0;
  bool same_bits = true;

  void Add(float got, float want) {
    if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want)) return;
    same_bits = false;
    const double error = std::abs(static_cast<double>(got) - static_cast<double>(want));
    // Not a number, or a log-sum-exp of -inf on one side only.
    max_error =
        std::max(max_error, std::isfinite(error) ? error : std::numeric_limits<double>::max());
  }
};

}  // namespace

double LargestNorm(std::span<const float> rows, int64_t head_dim) {
  double largest = 0;
  for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(head_dim)) {
    double sum = 0;
    for (size_t d = 0; d < static_cast<size_t>(head_dim); ++d)
      sum += static_cast<double>(rows[i + d]) * static_cast<double>(rows[i + d]);
    largest = std::max(largest, sum);
  }
  return std::sqrt(largest);
}

double SplitRowBound(int64_t head_dim, int64_t keys, int32_t parts, double max_score,
                     double max_value, Compute compute) {
  constexpr double kUnit = 0x1p-24, kSigmas = 6;
  const double weight = std::sqrt(static_cast<double>(head_dim)) * max_score;
  const double sums = std::sqrt(static_cast<double>(keys)) + 2 * static_cast<double>(parts);
  const double plain = 2 * kSigmas * kUnit * (weight + sums) * std::max(1.0, max_value);
  if (compute == Compute::kF32) return plain;
  const double units = std::sqrt(2 * 128 / 12.0) / WeightTop(compute);
  const double polynomial = compute == Compute::kInt8 ? 5.5e-3 : 8e-5;
  return plain + kSigmas * std::hypot(units, polynomial) + 2 * 0x1p-15 * max_value;
}

Verification::Verification(const LaneMasks& masks, Options options, ThreadPool& pool,
                           FunctionRef<void()> poll)
    : masks_(masks), options_(std::move(options)) {
  const PoolPoll polled(pool, poll);
  const Lanes lanes = masks.blocks().lanes();
  const BlockGrid grid = masks.blocks().grid();
  if (grid.q_tokens != grid.kv_tokens) {
    throw InputError(
        "[verify] a mask of {} queries and {} keys: self-attention has as many of both",
        grid.q_tokens, grid.kv_tokens);
  }
  const int64_t head_dim = options_.head_dim;
  const int64_t floats = lanes.Count() * grid.q_tokens * head_dim;
  Fill(q_, floats, options_.seed, 0, pool);
  Fill(k_, floats, options_.seed, 1, pool);
  Fill(v_, floats, options_.seed, 2, pool);
  max_score_ =
      LargestNorm(q_, head_dim) * LargestNorm(k_, head_dim) * static_cast<double>(Scale(head_dim));
  for (float value : v_) max_value_ = std::max(max_value_, std::abs(static_cast<double>(value)));
  out_.resize(static_cast<size_t>(floats));
  lse_.resize(static_cast<size_t>(lanes.Count() * grid.q_tokens));

  options_.plan.ranks = 1;
  const LaneOrders orders(ProblemFor(masks_, options_.plan));
  const AttentionRows rows = AttentionRows::FromMask(masks_.blocks());
  const Shape shape{lanes.batch, grid.q_tokens, lanes.heads, head_dim};
  AttentionArgs args;
  args.lanes = lanes;
  args.grid = grid;
  args.head_dim = head_dim;
  args.scale = Scale(head_dim);
  args.rows = &rows;
  args.q = ConstView(q_.data(), shape);
  args.k = ConstView(k_.data(), shape);
  args.v = ConstView(v_.data(), shape);
  args.q_order = args.kv_order = orders.ByLane();
  args.compute = options_.compute;
  args.out = View(out_.data(), shape);
  args.lse = lse_.data();
  args.poll = poll;
  Workspace workspace;
  Attention(args, pool, workspace);

  const std::vector<int64_t> sample = SampleRows(rows);
  rows_checked_ = std::ssize(sample);
  std::vector<AttentionError> errors(sample.size());
  pool.ParallelFor(rows_checked_, [&](int64_t i, int) {
    errors[static_cast<size_t>(i)] =
        CompareWithReference(args, std::span(&sample[static_cast<size_t>(i)], 1));
  });
  for (const AttentionError& error : errors) {
    if (!(error.worst_fraction <= one_rank_.worst_fraction)) one_rank_ = error;
  }
  // As the executor gives it: output of integers is rounded as if it had travelled.
  if (options_.compute != Compute::kF32)
    RoundToShort(out_.data(), floats / head_dim, head_dim, head_dim);
}

std::vector<int64_t> Verification::SampleRows(const AttentionRows& rows) const {
  const int64_t count = rows.Count();
  std::vector<int64_t> sample;
  for (int64_t i = 0; i < std::min(count, kRowsToCheck); ++i)
    sample.push_back(EvenPart(count, i, std::min(count, kRowsToCheck)).begin);
  sample.push_back(count - 1);
  for (int64_t row = 0; row < count; ++row) {
    if (!rows.KvBlocks(row).empty()) continue;
    sample.push_back(row);
    break;
  }
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

VerifyCase Verification::Check(Communicator& comm, ThreadPool& pool,
                               const PlannerSpec& spec) const {
  PlanOptions plan_options = options_.plan;
  plan_options.ranks = comm.size();
  RowCounts counts(masks_.blocks());
  const Plan plan = MakePlan(spec, masks_, counts, plan_options).plan;
  Executor executor(comm, pool);
  const auto part = executor.Prepare(plan, masks_, options_.head_dim, options_.compute);

  const Problem& problem = plan.problem();
  const HomeRows& home = part->home_rows;
  const int64_t heads = problem.lanes.heads, tokens = problem.grid.q_tokens,
                row = heads * options_.head_dim;
  std::vector<float> out(static_cast<size_t>(home.Count() * row), NAN),
      lse(static_cast<size_t>(home.Count() * heads), NAN);
  LayerCall call;
  call.layer = 0;
  call.scale = Scale(options_.head_dim);
  const Shape shape{problem.lanes.batch, tokens, heads, options_.head_dim};
  call.q = ConstView(q_.data(), shape);
  call.k = ConstView(k_.data(), shape);
  call.v = ConstView(v_.data(), shape);
  call.out = out.data();
  call.lse = lse.data();
  executor.Run(*part, call);

  Difference difference;
  for (int64_t i = 0; i < home.Count(); ++i) {
    const auto [item, token] = home.TokenOf(i);
    const float *got = out.data() + i * row, *want = out_.data() + (item * tokens + token) * row;
    for (int64_t d = 0; d < row; ++d) difference.Add(got[d], want[d]);
    for (int64_t head = 0; head < heads; ++head) {
      difference.Add(lse[static_cast<size_t>(head * home.Count() + i)],
                     lse_[static_cast<size_t>(problem.lanes.Lane(item, head) * tokens + token)]);
    }
  }
  double worst[] = {difference.max_error, difference.same_bits ? 0.0 : 1.0};
  comm.AllReduce(std::span<double>(worst), Reduce::kMax);

  VerifyCase result{.planner = spec.Text(),
                    .ranks = comm.size(),
                    .comm = std::string(comm.name()),
                    .same_bits = !plan.SplitsRows(),
                    .ok = worst[1] == 0.0,
                    .max_error = worst[0],
                    .bound = 0};
  if (!result.same_bits) {
    result.bound = SplitRowBound(options_.head_dim, tokens, plan.Stages(), max_score_, max_value_,
                                 options_.compute);
    result.ok = result.max_error <= result.bound;
  }
  return result;
}

}  // namespace equitile
