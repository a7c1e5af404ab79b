#include "equitile/exec/calibrate.h"

#include <algorithm>
#include <string>

#include "equitile/exec/agree.h"
#include "equitile/exec/itinerary.h"
#include "equitile/kernel/attention.h"
#include "equitile/kernel/fma_peak.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

// The best of a few: whatever disturbs a run makes it longer.
constexpr int kRuns = 5;
// Work of one run: long beside the clock and the start of threads, short beside a second.
constexpr double kRunFlops = 4e8;
constexpr int64_t kLongRow = 24;  // kept blocks

// Rows of `kept` blocks each over packed strips, as ranks compute them.
class KernelTiming {
 public:
  KernelTiming(int64_t head_dim, int64_t block) : sizes_(head_dim) {
    const double block_flops = 4.0 * static_cast<double>(head_dim * block * block);
    rows_ = std::clamp<int64_t>(static_cast<int64_t>(kRunFlops / block_flops / kLongRow), 4, 256);
    grid_ = {.q_tokens = rows_ * block, .kv_tokens = 2 * kLongRow * block, .block_tokens = block};
    strips_ = AlignedBuffer<float>::Zeroed(grid_.kv_tokens / kStripTokens * sizes_.kv);
    queries_ = AlignedBuffer<float>::Zeroed(grid_.q_tokens / kStripTokens * sizes_.q);
    // Anything but zeros and denormals will do.
    for (int64_t i = 0; i < strips_.size(); ++i)
      strips_[i] = 0.01f * static_cast<float>(i * 37 % 101 - 50);
    for (int64_t i = 0; i < queries_.size(); ++i)
      queries_[i] = 0.01f * static_cast<float>(i * 53 % 103 - 51);
    for (int64_t s = 0; s < grid_.kv_tokens / kStripTokens; ++s) {
      k_.push_back(strips_.data() + s * sizes_.kv);
      v_.push_back(strips_.data() + s * sizes_.kv + sizes_.q);
    }
    for (int64_t s = 0; s < grid_.q_tokens / kStripTokens; ++s)
      q_.push_back(queries_.data() + s * sizes_.q);
    out_ = AlignedBuffer<float>(grid_.q_tokens * head_dim);
  }

  int64_t Rows() const { return rows_; }

  double Seconds(Communicator& comm, ThreadPool& pool, int64_t kept) {
    AttentionRows rows;
    std::vector<int32_t> blocks;
    for (int64_t row = 0; row < rows_; ++row) {
      blocks.clear();
      for (int64_t i = 0; i < kept; ++i)
        blocks.push_back(static_cast<int32_t>((row % kLongRow) + i * kLongRow / kept));
      rows.Add(0, row, blocks);
    }
    AttentionArgs args;
    args.lanes = {.batch = 1, .heads = 1};
    args.grid = grid_;
    args.head_dim = sizes_.head_dim;
    args.scale = 0.1f;
    args.rows = &rows;
    args.q = StripTable{q_, std::ssize(q_)};
    args.k = StripTable{k_, std::ssize(k_)};
    args.v = StripTable{v_, std::ssize(v_)};
    args.out = View(out_.data(), Shape{1, grid_.q_tokens, 1, sizes_.head_dim});
    double best = 1e9;
    for (int run = 0; run <= kRuns; ++run) {
      const double begin = comm.Now();
      Attention(args, pool, workspace_);
      if (run > 0) best = std::min(best, comm.Now() - begin);
    }
    return best;
  }

 private:
  StripSizes sizes_;
  int64_t rows_ = 0;
  BlockGrid grid_;
  AlignedBuffer<float> strips_, queries_, out_;
  std::vector<const float*> q_, k_, v_;
  AttentionWorkspace workspace_;
};

KernelRate MeasureKernel(Communicator& comm, ThreadPool& pool, int64_t head_dim, int64_t block) {
  KernelTiming timing(head_dim, block);
  comm.Barrier();
  const double rows = static_cast<double>(timing.Rows());
  const double small = timing.Seconds(comm, pool, 1) / rows,
               large = timing.Seconds(comm, pool, kLongRow) / rows;
  // large = row + kLongRow * block, small = row + block
  const double per_block = (large - small) / static_cast<double>(kLongRow - 1);
  return {.head_dim = head_dim,
          .block = block,
          .dtype = "f32",
          .gflops = 4.0 * static_cast<double>(head_dim * block * block) / per_block * 1e-9,
          .row_seconds = std::max(0.0, small - per_block)};
}

// Between this rank and `other`; both call.
Link MeasureLink(Communicator& comm, int32_t other) {
  constexpr size_t kSmall = 64;
  constexpr size_t kLarge = size_t{8} << 20;
  constexpr int kRounds = 20, kLargeRounds = 4, kTag = 0;
  std::vector<std::byte> out(kLarge), in(kLarge);
  auto exchange = [&](size_t bytes) {
    CommRequest receive = comm.Receive(std::span(in).first(bytes), other, kTag);
    CommRequest send = comm.Send(std::span<const std::byte>(out).first(bytes), other, kTag);
    comm.Wait(send);
    comm.Wait(receive);
  };
  auto best = [&](size_t bytes, int rounds) {
    double seconds = 1e9;
    exchange(bytes);
    for (int round = 0; round < rounds; ++round) {
      const double begin = comm.Now();
      exchange(bytes);
      seconds = std::min(seconds, comm.Now() - begin);
    }
    return seconds;
  };
  const double latency = best(kSmall, kRounds), large = best(kLarge, kLargeRounds);
  return {.latency_seconds = latency,
          .bytes_per_second = static_cast<double>(kLarge) / std::max(large - latency, 1e-9)};
}

void MeasureLinks(Communicator& comm, Machine& machine) {
  auto measure = [&](const char* name, int32_t other) {
    comm.Barrier();
    Link link;
    if (comm.rank() == 0) link = MeasureLink(comm, other);
    if (comm.rank() == other) MeasureLink(comm, 0);
    machine.links.push_back({.name = name, .link = link});
  };
  measure("network", comm.size() - 1);
  if (comm.size() > 2) measure("node", 1);
}

}  // namespace

Machine Calibrate(Communicator& comm, ThreadPool& pool, const CalibrationOptions& options) {
  Machine machine;
  machine.target = std::string(TargetName(ActiveTarget()));
  machine.threads = pool.Threads();
  for (int64_t head_dim : options.head_dims) {
    for (int64_t block : options.blocks)
      machine.kernel.push_back(MeasureKernel(comm, pool, head_dim, block));
  }
  for (int window = 0; window < 3; ++window)
    machine.peak_gflops = std::max(machine.peak_gflops, FmaPeakWindow(pool));
  if (options.links && comm.size() > 1) MeasureLinks(comm, machine);
  return AgreeOnMachine(comm, machine);
}

}  // namespace equitile
