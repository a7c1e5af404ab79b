#include "equitile/kernel/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/kernel/attention_row.h"

namespace equitile {
namespace {

void CheckView(const char* name, const Shape& shape, const AttentionArgs& args, int64_t tokens) {
  const Shape want = {args.lanes.batch, tokens, args.lanes.heads, args.head_dim};
  if (shape == want) return;
  throw InputError("[attention] {} has shape {}; batch, tokens, heads, head_dim ask for {}", name,
                   shape.ToString(), want.ToString());
}

void CheckSource(const char* name, const TokenSource& source, const AttentionArgs& args,
                 int64_t tokens) {
  if (source.IsProducer()) return;
  if (source.IsStrips()) {
    const int64_t per_lane = CeilDiv(tokens, kStripTokens);
    if (source.strips.strips_per_lane != per_lane ||
        static_cast<int64_t>(source.strips.strips.size()) != per_lane * args.lanes.Count()) {
      throw InputError(
          "[attention] {} has {} strips, {} per lane; {} lanes of {} tokens ask for {} each", name,
          source.strips.strips.size(), source.strips.strips_per_lane, args.lanes.Count(), tokens,
          per_lane);
    }
    return;
  }
  CheckView(name, source.view.shape(), args, tokens);
}

void CheckRows(const AttentionArgs& args) {
  const AttentionRows& rows = *args.rows;
  const int64_t q_blocks = args.grid.QBlocks(), kv_blocks = args.grid.KvBlocks();
  EQ_CHECK(rows.first.size() == rows.rows.size() + 1, "{} rows, {} offsets", rows.rows.size(),
           rows.first.size());
  for (int64_t i = 0; i < rows.Count(); ++i) {
    const auto row = rows.rows[static_cast<size_t>(i)];
    if (row.lane < 0 || row.lane >= args.lanes.Count() || row.q_block < 0 ||
        row.q_block >= q_blocks) {
      throw InputError("[attention] row {}: lane {}, q block {}; there are {} lanes of {} blocks",
                       i, row.lane, row.q_block, args.lanes.Count(), q_blocks);
    }
    int64_t previous = -1;
    for (int32_t block : rows.KvBlocks(i)) {
      if (block <= previous || block >= kv_blocks) {
        throw InputError(
            "[attention] row {}: kv block {} after {}; blocks must ascend and be below {}", i,
            block, previous, kv_blocks);
      }
      previous = block;
    }
  }
}

void CheckArgs(const AttentionArgs& args) {
  CheckBlockGrid(args.grid);
  if (args.head_dim <= 0 || args.head_dim > kMaxHeadDim || args.head_dim % kHeadDimStep != 0) {
    throw InputError("[attention] head_dim {}: must be a multiple of {} up to {}", args.head_dim,
                     kHeadDimStep, kMaxHeadDim);
  }
  if (!(args.scale >= 0.0f) || !std::isfinite(args.scale)) {
    throw InputError("[attention] scale {}: must be finite and not negative", args.scale);
  }
  EQ_CHECK(args.rows != nullptr, "no rows");
  CheckSource("q", args.q, args, args.grid.q_tokens);
  CheckSource("k", args.k, args, args.grid.kv_tokens);
  CheckSource("v", args.v, args, args.grid.kv_tokens);
  CheckView("out", args.out.shape(), args, args.grid.q_tokens);
  for (const auto& order : {args.q_order, args.kv_order}) {
    if (!order.empty() && static_cast<int64_t>(order.size()) != args.lanes.Count()) {
      throw InputError("[attention] {} token orders for {} lanes", order.size(),
                       args.lanes.Count());
    }
  }
  CheckRows(args);
}

// Strips of one packing task: small enough that several threads share a lane, large enough to be
// worth a hand-out.
constexpr int64_t kPackStrips = 16;

// The order of work of one call. Rows of a lane stand together, so that the lane's packed K and V
// are in cache while they are used and few lanes are packed at a time; lanes and the rows of a lane
// go by descending cost, so that the last rows are small ones and all threads end together. Where K
// and V come packed there is nothing to share and all rows go by descending cost.
//
// Packing runs ahead_ lanes before computing: P0 .. Pa-1 | Pa R0 | Pa+1 R1 | ..., into a ring of
// buffers. Tasks are handed out in this order. A row waits for the packing of its lane, a packing
// for the rows of the lane whose buffer it takes over: both stand earlier in the order, so somebody
// is at them already and the waits are short.
class Schedule {
 public:
  struct Task {
    int32_t lane_slot = 0;  // index into lanes_, in order of work
    int32_t row = -1;       // of args.rows; -1: packing
    Range strips;           // to pack
  };

  Schedule(const AttentionArgs& args, int threads) : rows_(*args.rows) {
    const bool pack = !args.k.IsStrips() || !args.v.IsStrips();
    if (pack) {
      OrderByLane(args, threads);
    } else {
      lanes_.push_back(Lane{.lane = -1, .rows = RowsByCost(0, rows_.Count())});
    }
    Lay(args, pack, threads);
  }

  struct Lane {
    int64_t lane = 0;
    std::vector<int32_t> rows;  // by descending cost
    int64_t packs = 0;
  };

  const std::vector<Lane>& lanes() const { return lanes_; }
  const std::vector<Task>& tasks() const { return tasks_; }
  int64_t OpeningPacks() const { return opening_packs_; }
  int64_t Slots() const { return slots_; }

 private:
  int64_t Cost(int32_t row) const { return static_cast<int64_t>(rows_.KvBlocks(row).size()); }

  std::vector<int32_t> RowsByCost(int64_t begin, int64_t end) const {
    std::vector<int32_t> order(static_cast<size_t>(end - begin));
    std::iota(order.begin(), order.end(), static_cast<int32_t>(begin));
    SortByCost(order);
    return order;
  }
  void SortByCost(std::vector<int32_t>& order) const {
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return Cost(a) > Cost(b); });
  }

  void OrderByLane(const AttentionArgs& args, int threads) {
    std::vector<std::vector<int32_t>> by_lane(static_cast<size_t>(args.lanes.Count()));
    for (int32_t row = 0; row < rows_.Count(); ++row) {
      by_lane[static_cast<size_t>(rows_.rows[static_cast<size_t>(row)].lane)].push_back(row);
    }
    for (int64_t lane = 0; lane < args.lanes.Count(); ++lane) {
      auto& rows = by_lane[static_cast<size_t>(lane)];
      if (rows.empty()) continue;
      SortByCost(rows);
      lanes_.push_back(Lane{.lane = lane, .rows = std::move(rows)});
    }
    std::stable_sort(lanes_.begin(), lanes_.end(), [&](const Lane& a, const Lane& b) {
      return Cost(a.rows[0]) > Cost(b.rows[0]);
    });
    // Far enough ahead that every thread has a row to begin with, and another.
    int64_t rows = 0;
    while (ahead_ < static_cast<int64_t>(lanes_.size()) && rows < 2 * threads) {
      rows += static_cast<int64_t>(lanes_[static_cast<size_t>(ahead_++)].rows.size());
    }
    slots_ = std::min<int64_t>(2 * ahead_ + 1, static_cast<int64_t>(lanes_.size()));
  }

  // Runs of strips that the rows of a lane ask for, at most kPackStrips each.
  void LayPacks(const AttentionArgs& args, int64_t slot) {
    Lane& lane = lanes_[static_cast<size_t>(slot)];
    const int64_t per_block = args.grid.block_tokens / kStripTokens,
                  all = CeilDiv(args.grid.kv_tokens, kStripTokens);
    std::vector<bool> needed(static_cast<size_t>(args.grid.KvBlocks()), false);
    for (int32_t row : lane.rows) {
      for (int32_t block : rows_.KvBlocks(row)) needed[static_cast<size_t>(block)] = true;
    }
    for (int64_t block = 0; block < args.grid.KvBlocks();) {
      if (!needed[static_cast<size_t>(block)]) {
        ++block;
        continue;
      }
      int64_t end = block + 1;
      while (end < args.grid.KvBlocks() && needed[static_cast<size_t>(end)] &&
             (end - block + 1) * per_block <= kPackStrips)
        ++end;
      tasks_.push_back({.lane_slot = static_cast<int32_t>(slot),
                        .row = -1,
                        .strips = {block * per_block, std::min(end * per_block, all)}});
      ++lane.packs;
      block = end;
    }
  }

  void Lay(const AttentionArgs& args, bool pack, int) {
    const auto lanes = static_cast<int64_t>(lanes_.size());
    if (pack) {
      for (int64_t slot = 0; slot < std::min(ahead_, lanes); ++slot) LayPacks(args, slot);
    }
    opening_packs_ = static_cast<int64_t>(tasks_.size());
    for (int64_t slot = 0; slot < lanes; ++slot) {
      if (pack && slot + ahead_ < lanes) LayPacks(args, slot + ahead_);
      for (int32_t row : lanes_[static_cast<size_t>(slot)].rows) {
        tasks_.push_back({.lane_slot = static_cast<int32_t>(slot), .row = row, .strips = {}});
      }
    }
  }

  const AttentionRows& rows_;
  std::vector<Lane> lanes_;
  std::vector<Task> tasks_;
  int64_t ahead_ = 0;
  int64_t slots_ = 0;
  int64_t opening_packs_ = 0;
};

// One call at work: the schedule's tasks in the hands of the pool's threads.
class Call {
 public:
  Call(const AttentionArgs& args, ThreadPool& pool, AttentionWorkspace& workspace)
      : args_(args),
        threads_(pool.Threads()),
        workspace_(workspace),
        schedule_(args, pool.Threads()),
        per_lane_(CeilDiv(args.grid.kv_tokens, kStripTokens)),
        strip_floats_(StripFloats(args.head_dim)),
        packs_left_(schedule_.lanes().size()),
        rows_left_(schedule_.lanes().size()),
        next_task_(schedule_.OpeningPacks()) {
    for (size_t slot = 0; slot < schedule_.lanes().size(); ++slot) {
      packs_left_[slot] = schedule_.lanes()[slot].packs;
      rows_left_[slot] = static_cast<int64_t>(schedule_.lanes()[slot].rows.size());
    }
    PlaceBuffers();
    ReserveFirstRows();
  }

  void Run(int thread) {
    try {
      Work(thread);
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

 private:
  // Room for Slots() lanes of packed K and V, as far as they do not come packed.
  void PlaceBuffers() {
    const int64_t tensors = (args_.k.IsStrips() ? 0 : 1) + (args_.v.IsStrips() ? 0 : 1);
    const int64_t lane_floats = per_lane_ * strip_floats_;
    float* base = workspace_.Shared(schedule_.Slots() * tensors * lane_floats);
    auto place = [&](std::vector<const float*>& table) {
      for (int64_t strip = 0; strip < schedule_.Slots() * per_lane_; ++strip)
        table.push_back(base + strip * strip_floats_);
      base += schedule_.Slots() * lane_floats;
    };
    if (!args_.k.IsStrips()) place(k_buffers_);
    if (!args_.v.IsStrips()) place(v_buffers_);
    for (int thread = 0; thread < threads_; ++thread) {
      scratch_.push_back(workspace_.PerThread(thread, threads_, RowScratchFloats(args_.head_dim)));
    }
  }

  // Every thread begins with a row of its own, so that as many compute as were asked for, however
  // late they wake.
  void ReserveFirstRows() {
    const auto& tasks = schedule_.tasks();
    for (size_t i = static_cast<size_t>(schedule_.OpeningPacks());
         i < tasks.size() && reserved_.size() < static_cast<size_t>(threads_); ++i) {
      if (tasks[i].row >= 0) reserved_.push_back(static_cast<int64_t>(i));
    }
  }

  void Work(int thread) {
    for (int64_t i = next_opening_++; i < schedule_.OpeningPacks(); i = next_opening_++)
      Do(i, thread);
    const bool has_own = static_cast<size_t>(thread) < reserved_.size();
    // Packing that stands before the last reserved row is needed by somebody's first row only after
    // that row's lane was packed in the opening, so a reserved row never waits for a task that
    // nobody has taken.
    if (has_own) Do(reserved_[static_cast<size_t>(thread)], thread);
    const auto total = static_cast<int64_t>(schedule_.tasks().size());
    for (int64_t i = next_task_++; i < total && !failed_; i = next_task_++) {
      if (!std::binary_search(reserved_.begin(), reserved_.end(), i)) Do(i, thread);
    }
  }

  void Do(int64_t index, int thread) {
    const Schedule::Task& task = schedule_.tasks()[static_cast<size_t>(index)];
    if (task.row < 0) {
      Pack(task, thread);
    } else {
      Compute(task, thread);
    }
  }

  const float* const* Strips(const TokenSource& source, const std::vector<const float*>& buffers,
                             int64_t slot, int64_t lane) const {
    return source.IsStrips() ? source.strips.strips.data() + lane * source.strips.strips_per_lane
                             : buffers.data() + slot % schedule_.Slots() * per_lane_;
  }

  void Pack(const Schedule::Task& task, int thread) {
    const int64_t slot = task.lane_slot, before = slot - schedule_.Slots();
    if (before >= 0) Wait(rows_left_[static_cast<size_t>(before)], thread);
    const int64_t lane = schedule_.lanes()[static_cast<size_t>(slot)].lane;
    auto pack = [&](const TokenSource& source, const std::vector<const float*>& buffers) {
      if (source.IsStrips()) return;
      PackStrips({.layout = StripLayout::kKeyValue,
                  .source = &source,
                  .lanes = args_.lanes,
                  .lane = lane,
                  .tokens = args_.grid.kv_tokens,
                  .head_dim = args_.head_dim,
                  .token_at_position =
                      args_.kv_order.empty() ? nullptr : args_.kv_order[static_cast<size_t>(lane)],
                  .strips = task.strips},
                 const_cast<float*>(Strips(source, buffers, slot, lane)[task.strips.begin]));
    };
    pack(args_.k, k_buffers_);
    pack(args_.v, v_buffers_);
    packs_left_[static_cast<size_t>(slot)].fetch_sub(1, std::memory_order_release);
    Tick(thread);
  }

  void Compute(const Schedule::Task& task, int thread) {
    const int64_t slot = task.lane_slot;
    Wait(packs_left_[static_cast<size_t>(slot)], thread);
    const AttentionRows::Row row = args_.rows->rows[static_cast<size_t>(task.row)];
    auto tick = [this, thread] { Tick(thread); };
    ComputeRow(
        {.args = &args_,
         .lane = row.lane,
         .q_block = row.q_block,
         .kv_blocks = args_.rows->KvBlocks(task.row),
         .k_strips = Strips(args_.k, k_buffers_, slot, row.lane),
         .v_strips = Strips(args_.v, v_buffers_, slot, row.lane),
         .tick = args_.poll && thread == 0 ? FunctionRef<void()>(tick) : FunctionRef<void()>()},
        scratch_[static_cast<size_t>(thread)]);
    rows_left_[static_cast<size_t>(slot)].fetch_sub(1, std::memory_order_release);
    Tick(thread);
  }

  void Wait(const std::atomic<int64_t>& left, int thread) {
    while (left.load(std::memory_order_acquire) > 0) {
      if (failed_) throw Error("[attention] another thread failed");
      Tick(thread);
      std::this_thread::yield();
    }
  }

  // Polls, on the calling thread, when the last poll is a while ago.
  void Tick(int thread) {
    constexpr double kPollSeconds = 200e-6;
    if (thread != 0 || !args_.poll) return;
    const double now = NowSeconds();
    if (now - last_poll_ < kPollSeconds) return;
    args_.poll();
    last_poll_ = NowSeconds();
  }

  const AttentionArgs& args_;
  const int threads_;
  AttentionWorkspace& workspace_;
  const Schedule schedule_;
  const int64_t per_lane_, strip_floats_;
  std::vector<const float*> k_buffers_, v_buffers_;           // [slots][strips of a lane]
  std::vector<float*> scratch_;                               // per thread
  std::vector<std::atomic<int64_t>> packs_left_, rows_left_;  // by lane slot
  std::vector<int64_t> reserved_;  // ascending: the first row task of each thread
  std::atomic<int64_t> next_opening_{0}, next_task_;
  std::atomic<bool> failed_{false};
  double last_poll_ = 0.0;
};

}  // namespace

AttentionRows AttentionRows::FromMask(const BlockMask& mask) {
  AttentionRows rows;
  rows.rows.reserve(static_cast<size_t>(mask.LaneCount() * mask.QBlocks()));
  rows.kv_blocks.reserve(static_cast<size_t>(mask.Kept()));
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q_block = 0; q_block < mask.QBlocks(); ++q_block) {
      rows.rows.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(q_block)});
      mask.ForEachKept(lane, q_block, [&](int64_t kv_block) {
        rows.kv_blocks.push_back(static_cast<int32_t>(kv_block));
      });
      rows.first.push_back(static_cast<int64_t>(rows.kv_blocks.size()));
    }
  }
  return rows;
}

AttentionRows AttentionRows::Dense(Lanes lanes, const BlockGrid& grid) {
  return FromMask(BlockMask::Dense(lanes, grid));
}

void AttentionRows::Add(int64_t lane, int64_t q_block, std::span<const int32_t> kept) {
  rows.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(q_block)});
  kv_blocks.insert(kv_blocks.end(), kept.begin(), kept.end());
  first.push_back(static_cast<int64_t>(kv_blocks.size()));
}

float* AttentionWorkspace::Shared(int64_t floats) {
  if (shared_.size() < floats) shared_ = AlignedBuffer<float>(floats);
  return shared_.data();
}

float* AttentionWorkspace::PerThread(int thread, int threads, int64_t floats) {
  if (per_thread_.size() < static_cast<size_t>(threads))
    per_thread_.resize(static_cast<size_t>(threads));
  AlignedBuffer<float>& buffer = per_thread_[static_cast<size_t>(thread)];
  if (buffer.size() < floats) buffer = AlignedBuffer<float>(floats);
  return buffer.data();
}

int64_t AttentionWorkspace::Bytes() const {
  int64_t floats = shared_.size();
  for (const auto& buffer : per_thread_) floats += buffer.size();
  return floats * static_cast<int64_t>(sizeof(float));
}

void Attention(const AttentionArgs& args, ThreadPool& pool, AttentionWorkspace& workspace) {
  CheckArgs(args);
  if (args.rows->Count() == 0) return;
  Call call(args, pool, workspace);
  pool.Run([&](int thread) { call.Run(thread); });
}

void MergePartial(float* out, float* lse, const float* out2, const float* lse2, int64_t tokens,
                  int64_t head_dim) {
  for (int64_t t = 0; t < tokens; ++t) {
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    if (lse2[t] == kNothing) continue;
    const float high = std::max(lse[t], lse2[t]);
    const float w1 = std::exp(lse[t] - high), w2 = std::exp(lse2[t] - high);
    const float a = w1 / (w1 + w2), b = w2 / (w1 + w2);
    float* row = out + t * head_dim;
    const float* row2 = out2 + t * head_dim;
    for (int64_t i = 0; i < head_dim; ++i) row[i] = row[i] * a + row2[i] * b;
    lse[t] = high + std::log(w1 + w2);
  }
}

}  // namespace equitile
