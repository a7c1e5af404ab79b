#include "equitile/exec/calibrate.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <string>

#include "equitile/base/timer.h"
#include "equitile/base/turns.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/link_calibration.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/linear/linear.h"
#include "equitile/kernel/simd/fma_peak.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

// Timings are medians of so many runs: what a rank will meet on average, not its luckiest moment.
constexpr int kRuns = 15;
// Work of one run: long beside the clock and the start of threads, short beside a second.
constexpr double kRunFlops = 8e8;
constexpr int64_t kLongRow = 24;  // kept blocks
constexpr int kGainRuns = 5;      // where a user waits for the answer
// Tokens that are packed: more than caches hold, as between two attention layers.
constexpr int64_t kPackTokens = 1024, kPackHeads = 16;
constexpr int64_t kPackStrips = 4;  // per task

// The rank's clock. A simulator that models compute has none that would see it; there, where ranks
// take turns in one process, it is the processor's time.
double Clock(const Communicator& comm) {
  if (!comm.models_compute()) return comm.Now();
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double Median(std::vector<double> seconds) {
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

AlignedBuffer<float> SomeNumbers(int64_t count) {
  AlignedBuffer<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = 0.01f * static_cast<float>(i * 37 % 101 - 50);
  return numbers;
}

// One lane's strips of one kind.
class TimedStrips {
 public:
  TimedStrips(StripLayout layout, Compute compute, int64_t tokens, int64_t head_dim)
      : compute_(compute) {
    const int64_t count = CeilDiv(tokens, kStripTokens), pitch = StripPitch(head_dim, compute);
    const AlignedBuffer<float> rows = SomeNumbers(tokens * head_dim);
    const TokenSource source = ConstView(rows.data(), {1, tokens, 1, head_dim});
    bytes_ = AlignedBuffer<std::byte>(count * pitch);
    PackStrips({.layout = layout,
                .compute = compute,
                .source = &source,
                .lanes = {.batch = 1, .heads = 1},
                .tokens = tokens,
                .head_dim = head_dim,
                .strips = {0, count},
                .pitch = pitch},
               bytes_.data());
    for (int64_t s = 0; s < count; ++s) strips_.push_back(bytes_.data() + s * pitch);
  }

  StripTable Table() const { return {strips_, std::ssize(strips_), compute_}; }

 private:
  Compute compute_;
  AlignedBuffer<std::byte> bytes_;
  std::vector<const std::byte*> strips_;
};

int64_t TimedRows(int64_t head_dim, int64_t block) {
  const double block_flops = 4.0 * static_cast<double>(head_dim * block * block);
  return std::clamp<int64_t>(static_cast<int64_t>(kRunFlops / block_flops / kLongRow), 4, 256);
}

// Rows over packed strips, as ranks compute them.
class KernelTiming {
 public:
  KernelTiming(Compute compute, int64_t head_dim, int64_t block)
      : compute_(compute),
        head_dim_(head_dim),
        rows_(TimedRows(head_dim, block)),
        grid_{.q_tokens = rows_ * block, .kv_tokens = 2 * kLongRow * block, .block_tokens = block},
        q_(StripLayout::kQuery, compute, grid_.q_tokens, head_dim),
        k_(StripLayout::kKey, compute, grid_.kv_tokens, head_dim),
        v_(StripLayout::kValue, compute, grid_.kv_tokens, head_dim),
        out_(grid_.q_tokens * head_dim) {}

  int64_t Rows() const { return rows_; }
  double BlockGflop() const {
    return 4e-9 * static_cast<double>(head_dim_ * grid_.block_tokens * grid_.block_tokens);
  }

  AttentionRows RowsOf(int64_t kept) const {
    AttentionRows rows;
    std::vector<int32_t> blocks;
    for (int64_t row = 0; row < rows_; ++row) {
      blocks.clear();
      for (int64_t i = 0; i < kept; ++i)
        blocks.push_back(static_cast<int32_t>((row % kLongRow) + i * kLongRow / kept));
      rows.Add(0, row, blocks);
    }
    return rows;
  }

  void Run(ThreadPool& pool, const AttentionRows& rows) {
    AttentionArgs args;
    args.compute = compute_;
    args.lanes = {.batch = 1, .heads = 1};
    args.grid = grid_;
    args.head_dim = head_dim_;
    args.scale = 0.1f;
    args.rows = &rows;
    args.q = q_.Table();
    args.k = k_.Table();
    args.v = v_.Table();
    args.out = View(out_.data(), Shape{1, grid_.q_tokens, 1, head_dim_});
    Attention(args, pool, workspace_);
  }

  double Seconds(Communicator& comm, ThreadPool& pool, const AttentionRows& rows) {
    const double begin = Clock(comm);
    Run(pool, rows);
    return Clock(comm) - begin;
  }

 private:
  Compute compute_;
  int64_t head_dim_;
  int64_t rows_;
  BlockGrid grid_;
  TimedStrips q_, k_, v_;
  AlignedBuffer<float> out_;
  Workspace workspace_;
};

KernelRate MeasureKernel(Communicator& comm, ThreadPool& pool, Compute compute, int64_t head_dim,
                         int64_t block) {
  KernelTiming timing(compute, head_dim, block);
  const AttentionRows short_rows = timing.RowsOf(1), long_rows = timing.RowsOf(kLongRow);
  comm.Barrier();
  // In turns, so that both see the same machine; the first of each warms up.
  std::vector<double> small_runs, large_runs;
  for (int run = 0; run <= kRuns; ++run) {
    const double small = timing.Seconds(comm, pool, short_rows),
                 large = timing.Seconds(comm, pool, long_rows);
    if (run == 0) continue;
    small_runs.push_back(small);
    large_runs.push_back(large);
  }
  const double rows = static_cast<double>(timing.Rows());
  const double small = Median(small_runs) / rows, large = Median(large_runs) / rows;
  // large = row + kLongRow * block, small = row + block
  const double per_block = (large - small) / static_cast<double>(kLongRow - 1);
  return {.head_dim = head_dim,
          .block = block,
          .dtype = std::string(ComputeName(compute)),
          .gflops = timing.BlockGflop() / per_block,
          .row_seconds = std::max(0.0, small - per_block)};
}

// Bytes of Q, K and V per second from rows [tokens][Q, K, V][heads][head_dim] into strips, in the
// order in which homes pack.
double MeasurePacking(Communicator& comm, ThreadPool& pool, int64_t head_dim) {
  const int64_t strip = StripBytes(head_dim);
  const int64_t width = 3 * kPackHeads * head_dim;
  const AlignedBuffer<float> rows = SomeNumbers(kPackTokens * width);
  AlignedBuffer<std::byte> strips =
      AlignedBuffer<std::byte>::Zeroed(kPackTokens / kStripTokens * 3 * kPackHeads * strip);
  TokenSource sources[3];
  for (int64_t i = 0; i < 3; ++i) {
    sources[i] = ConstView(rows.data() + i * kPackHeads * head_dim, DType::kF32,
                           Shape{1, kPackTokens, kPackHeads, head_dim},
                           Strides{kPackTokens * width, width, head_dim, 1});
  }
  auto pack = [&](int64_t task, int) {
    const int64_t lane = task % kPackHeads, first = task / kPackHeads * kPackStrips;
    for (int64_t i = 0; i < 3; ++i) {
      PackStrips({.layout = i == 0 ? StripLayout::kQuery : StripLayout::kKey,
                  .source = &sources[i],
                  .lanes = {.batch = 1, .heads = kPackHeads},
                  .lane = lane,
                  .tokens = kPackTokens,
                  .head_dim = head_dim,
                  .token_at_position = nullptr,
                  .strips = {first, first + kPackStrips}},
                 strips.data() + (task * 3 + i) * kPackStrips * strip);
    }
  };
  std::vector<double> runs;
  for (int run = 0; run <= kRuns; ++run) {
    const double begin = Clock(comm);
    pool.ParallelFor(kPackTokens / kStripTokens / kPackStrips * kPackHeads, pack);
    if (run > 0) runs.push_back(Clock(comm) - begin);
  }
  return static_cast<double>(rows.size()) * sizeof(float) / Median(runs);
}

template <class Work>
double BestSeconds(const Work& work) {
  work();  // warms up
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kGainRuns; ++run) {
    const Stopwatch watch;
    work();
    best = std::min(best, watch.Seconds());
  }
  return best;
}

// A linear layer of a size that is neither wide nor narrow.
class LinearTiming {
 public:
  LinearTiming(WeightType type, ThreadPool& pool)
      : pool_(pool),
        x_(SomeNumbers(kTokens * kWidth)),
        y_(kTokens * kWidth),
        packed_(PackedLinearBytes(kWidth, kWidth, type)) {
    const AlignedBuffer<float> weights = SomeNumbers(kWidth * kWidth);
    PackLinear(ConstView(weights.data(), {kWidth, kWidth}), type, packed_.span(), pool);
    args_.weights = PackedLinear::View(packed_.span());
    args_.x = ConstView(x_.data(), {kTokens, kWidth});
    args_.y = View(y_.data(), {kTokens, kWidth});
  }

  static double Gflop() { return 2e-9 * static_cast<double>(kTokens * kWidth * kWidth); }

  void Run() { Linear(args_, pool_, workspace_); }

 private:
  static constexpr int64_t kTokens = 384, kWidth = 768;

  ThreadPool& pool_;
  AlignedBuffer<float> x_, y_;
  AlignedBuffer<std::byte> packed_;
  LinearArgs args_;
  Workspace workspace_;
};

}  // namespace

double MeasureLinearGflops(ThreadPool& pool, Compute compute) {
  LinearTiming timing(ParseWeightType(ComputeName(compute)), pool);
  return LinearTiming::Gflop() / BestSeconds([&] { timing.Run(); });
}

SpeedUps MeasureSpeedUps(Compute attention, Compute linear, int64_t head_dim) {
  constexpr int64_t kBlock = 64;
  ThreadPool one(1);
  // Beside each other: f32 and the arithmetic that is asked about.
  const auto speed_up = [&](Compute compute, const auto& make, const auto& run) {
    if (compute == Compute::kF32) return 1.0;
    auto f32 = make(Compute::kF32), own = make(compute);
    const auto turn = [&](size_t work) { run(work == 0 ? f32 : own); };
    TurnTimes times[2], warm_up[2];
    TimeInTurns(1, 0, turn, warm_up);
    for (int i = 0; i < kGainRuns; ++i) TimeInTurns(1, 0, turn, times);
    return times[0].least / times[1].least;
  };
  return {.attention = speed_up(
              attention, [&](Compute c) { return KernelTiming(c, head_dim, kBlock); },
              [&](KernelTiming& timing) { timing.Run(one, timing.RowsOf(kLongRow)); }),
          .linear = speed_up(
              linear, [&](Compute c) { return LinearTiming(ParseWeightType(ComputeName(c)), one); },
              [](LinearTiming& timing) { timing.Run(); })};
}

Machine Calibrate(Communicator& comm, ThreadPool& pool, const CalibrationOptions& options) {
  Machine machine;
  machine.target = std::string(ActiveTargetName());
  machine.threads = pool.Threads();
  for (Compute compute : options.computes) {
    for (int64_t head_dim : options.head_dims) {
      for (int64_t block : options.blocks)
        machine.kernel.push_back(MeasureKernel(comm, pool, compute, head_dim, block));
    }
  }
  machine.pack_bytes_per_second =
      MeasurePacking(comm, pool, options.head_dims.empty() ? 128 : options.head_dims.back());
  for (Compute compute : {Compute::kF32, Compute::kInt16, Compute::kInt8}) {
    if (!options.linear) break;
    machine.linear.push_back(
        {.dtype = std::string(ComputeName(compute)), .gflops = MeasureLinearGflops(pool, compute)});
  }
  for (int window = 0; window < 3; ++window)
    machine.peak_gflops = std::max(machine.peak_gflops, FmaPeakWindow(pool));
  if (options.links && comm.size() > 1) MeasureLinks(comm, machine);
  return AgreeOnMachine(comm, machine);
}

}  // namespace equitile
