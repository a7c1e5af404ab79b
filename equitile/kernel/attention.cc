#include "equitile/kernel/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/kernel/attention_row.h"

namespace equitile {
namespace {

// Query strips that walk their keys and values together, at most. Dense, head_dim 128, other work
// on the machine: medians with 4, 8, 12 strips 0.65, 0.68, 0.72 and 0.64, 0.74, 0.78 of peak; at 64
// and 32, whose K and V are small, no difference beyond the noise.
constexpr int64_t kTogetherStrips = 12;

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

void CheckTails(const AttentionArgs& args) {
  const AttentionTails& tails = args.tails;
  if (std::ranges::count(tails.lanes, Tail::kMean) == 0) return;
  const auto lanes = static_cast<size_t>(args.lanes.Count());
  if (tails.lanes.size() != lanes || (!tails.means.empty() && tails.means.size() != lanes)) {
    throw InputError("[attention] {} tails and {} means for {} lanes", tails.lanes.size(),
                     tails.means.size(), lanes);
  }
  if (tails.means.empty() && (args.k.IsStrips() || args.v.IsStrips())) {
    throw InputError("[attention] tails of strips: K and V may lack blocks; give their means");
  }
  if (tails.kept != nullptr &&
      (tails.kept->lanes() != args.lanes || tails.kept->grid() != args.grid)) {
    throw InputError("[attention] tails of parts: the mask of whole rows has another grid");
  }
  if (args.bias.data != nullptr) throw InputError("[attention] bias and tails: one or the other");
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
  if (args.out_strips.Used()) {
    const int64_t per_lane = CeilDiv(args.grid.q_tokens, kStripTokens);
    EQ_CHECK(args.out_strips.strips_per_lane == per_lane &&
                 std::ssize(args.out_strips.strips) == per_lane * args.lanes.Count(),
             "{} output strips, {} per lane", args.out_strips.strips.size(),
             args.out_strips.strips_per_lane);
  } else {
    CheckView("out", args.out.shape(), args, args.grid.q_tokens);
  }
  for (const auto& order : {args.q_order, args.kv_order}) {
    if (!order.empty() && static_cast<int64_t>(order.size()) != args.lanes.Count()) {
      throw InputError("[attention] {} token orders for {} lanes", order.size(),
                       args.lanes.Count());
    }
  }
  EQ_CHECK(args.masses == nullptr || !args.out_strips.merge, "masses of parts of rows");
  CheckTails(args);
  CheckRows(args);
}

// The order of work of one call: lanes by descending cost of their longest row, rows of a lane
// together and by descending cost. So the last rows are small ones and all threads end together,
// and few lanes are packed at a time. Where K and V come packed there is nothing to share and all
// rows go by descending cost. Neighbours in this order that keep the same kv blocks become one
// task: they walk their keys and values together, which so come from L3 or from memory once.
class Schedule {
 public:
  struct Task {
    int32_t slot = 0;  // number of the lane in order of work
    int32_t lane = 0;
    std::span<const int32_t> rows, kv_blocks;
  };

  Schedule(const AttentionArgs& args, int threads) : args_(args), rows_(*args.rows) {
    const bool by_lane = !args.k.IsStrips() || !args.v.IsStrips();
    std::vector<std::vector<int32_t>> groups(by_lane ? static_cast<size_t>(args.lanes.Count()) : 1);
    for (int32_t row = 0; row < rows_.Count(); ++row) {
      groups[by_lane ? static_cast<size_t>(rows_.rows[static_cast<size_t>(row)].lane) : 0]
          .push_back(row);
    }
    std::erase_if(groups, [](const auto& group) { return group.empty(); });
    for (auto& group : groups) {
      std::stable_sort(group.begin(), group.end(),
                       [&](int32_t a, int32_t b) { return Cost(a) > Cost(b); });
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const auto& a, const auto& b) { return Cost(a[0]) > Cost(b[0]); });
    for (const auto& group : groups) order_.insert(order_.end(), group.begin(), group.end());
    const int64_t together = RowsTogether(args, threads);
    const int32_t* row = order_.data();
    for (const auto& group : groups) {
      const size_t before = tasks_.size();
      for (size_t i = 0, count; i < group.size(); i += count, row += count) {
        count = 1;
        while (static_cast<int64_t>(count) < together && i + count < group.size() &&
               WalkTogether(group[i], group[i + count]))
          ++count;
        tasks_.push_back({.slot = static_cast<int32_t>(tasks_in_slot_.size()),
                          .lane = rows_.rows[static_cast<size_t>(group[i])].lane,
                          .rows = {row, count},
                          .kv_blocks = rows_.KvBlocks(group[i])});
      }
      tasks_in_slot_.push_back(static_cast<int64_t>(tasks_.size() - before));
    }
    CountBuffers(threads);
  }
  Schedule(const Schedule&) = delete;  // tasks point into it
  Schedule& operator=(const Schedule&) = delete;

  const std::vector<Task>& Tasks() const { return tasks_; }
  const std::vector<int64_t>& TasksInSlot() const { return tasks_in_slot_; }
  // How many lanes' packed K and V are kept at a time.
  int64_t Buffers() const { return buffers_; }

 private:
  // Keys, or means.
  int64_t Cost(int32_t row) const {
    const auto kept = static_cast<int64_t>(rows_.KvBlocks(row).size());
    const bool tail = args_.tails.Has(rows_.rows[static_cast<size_t>(row)].lane);
    return kept * args_.grid.block_tokens + (tail ? args_.grid.KvBlocks() - kept : 0);
  }

  // How many rows may be one task: those of kTogetherStrips, but not so many that the last tasks of
  // the threads end far apart.
  int64_t RowsTogether(const AttentionArgs& args, int threads) const {
    constexpr int64_t kTasksPerThread = 16;
    const int64_t strips = std::min(kTogetherStrips, GroupStrips(args.head_dim));
    return std::max<int64_t>(1, std::min(strips * kStripTokens / args.grid.block_tokens,
                                         rows_.Count() / (kTasksPerThread * threads)));
  }
  bool WalkTogether(int32_t a, int32_t b) const {
    const AttentionRows::Row row_a = rows_.rows[static_cast<size_t>(a)],
                             row_b = rows_.rows[static_cast<size_t>(b)];
    return row_a.lane == row_b.lane && std::ranges::equal(rows_.KvBlocks(a), rows_.KvBlocks(b)) &&
           (args_.tails.kept == nullptr ||
            std::ranges::equal(args_.tails.kept->Row(row_a.lane, row_a.q_block),
                               args_.tails.kept->Row(row_b.lane, row_b.q_block)));
  }

  // The threads are at no more than 2 * threads consecutive tasks (one at work, one claimed); the
  // lanes of these, and one more, so that nobody waits for the last row of a lane.
  void CountBuffers(int threads) {
    const auto slots = static_cast<int64_t>(tasks_in_slot_.size());
    int64_t widest = 1;
    for (size_t i = 0, j = 0; i < tasks_.size(); ++i) {
      while (i - j >= static_cast<size_t>(2 * threads)) ++j;
      widest = std::max<int64_t>(widest, tasks_[i].slot - tasks_[j].slot + 1);
    }
    buffers_ = std::min(slots, widest + 1);
  }

  const AttentionArgs& args_;
  const AttentionRows& rows_;
  std::vector<int32_t> order_;  // of work, of all rows
  std::vector<Task> tasks_;
  std::vector<int64_t> tasks_in_slot_;
  int64_t buffers_ = 0;
};

// One call at work. A kv block of a lane is packed by the first row that comes to it, and shared by
// the others; so packing is spread over the threads, only what is needed is packed, and it is in
// the cache of the one that uses it first. A block that few rows ask for is packed by each of them
// into a few kilobytes of its thread, which stay in cache, and not into memory that others share.
class Call {
 public:
  Call(const AttentionArgs& args, ThreadPool& pool, AttentionWorkspace& workspace)
      : args_(args),
        schedule_(args, pool.Threads()),
        kv_blocks_(args.grid.KvBlocks()),
        per_block_(args.grid.block_tokens / kStripTokens),
        pitch_(StripPitch(args.head_dim)),
        packs_(!args.k.IsStrips() || !args.v.IsStrips()),
        states_(packs_ ? static_cast<size_t>(schedule_.Buffers() * kv_blocks_) : 0),
        tasks_left_(schedule_.TasksInSlot().size()),
        next_task_(pool.Threads()),
        working_(pool.Threads()) {
    for (size_t slot = 0; slot < tasks_left_.size(); ++slot)
      tasks_left_[slot] = schedule_.TasksInSlot()[slot];
    const int64_t shared_strips = packs_ ? schedule_.Buffers() * kv_blocks_ * per_block_ : 0;
    const int64_t own_strips = packs_ ? OwnBlocks() * per_block_ : 0;
    const bool tails = std::ranges::count(args.tails.lanes, Tail::kMean) > 0;
    if (tails && args.tails.means.empty()) ListMeans();
    float* shared = workspace.Shared(2 * shared_strips * pitch_ +
                                     std::ssize(lanes_of_means_) * kv_blocks_ * 2 * args.head_dim);
    PlaceMeans(shared + 2 * shared_strips * pitch_);
    Place(shared, shared_strips, shared_k_);
    Place(shared + shared_strips * pitch_, shared_strips, shared_v_);
    for (int thread = 0; thread < pool.Threads(); ++thread) {
      float* own = workspace.PerThread(thread, pool.Threads(),
                                       RowScratchFloats(args) + 2 * own_strips * pitch_);
      Own& mine = own_.emplace_back();
      Place(own, own_strips, mine.k);
      Place(own + own_strips * pitch_, own_strips, mine.v);
      mine.scratch = own + 2 * own_strips * pitch_;
    }
    if (packs_) CountUses();
  }

  void Run(int thread) {
    try {
      MakeMeans(thread);
      Work(thread);
    } catch (const Abandoned&) {
    } catch (...) {
      failed_ = true;
      --working_;
      throw;
    }
    --working_;
    // While others still compute, the calling thread has nothing to do but to poll.
    while (thread == 0 && args_.poll && working_ > 0) {
      Tick(thread);
      std::this_thread::yield();
    }
  }

 private:
  // Ends the work of a thread that waits for one that failed. It ends here, so that the caller gets
  // the exception of the one that failed, whichever is thrown first.
  struct Abandoned {};

  // Rows that make it worth to pack a block into shared memory: with fewer, each packs it for
  // itself, where it is in cache.
  static constexpr uint8_t kShareFrom = 4;

  // What belongs to one thread.
  struct Own {
    float* scratch = nullptr;
    std::vector<const float*> k, v;  // strips of a ring of OwnBlocks() blocks
    int64_t next = 0;                // block of the ring
    PrefetchRows soon;
    std::vector<int32_t> skipped;  // blocks of the task, where it has a tail
  };

  // Blocks that a chunk may look at, whose ends may cut a block.
  int64_t OwnBlocks() const { return CeilDiv(kChunkStrips, per_block_) + 1; }

  void Place(float* base, int64_t strips, std::vector<const float*>& table) const {
    for (int64_t strip = 0; strip < strips; ++strip) table.push_back(base + strip * pitch_);
  }

  // Which blocks of which lanes several rows ask for.
  void CountUses() {
    const bool walks_once = per_block_ <= GroupStrips(args_.head_dim);
    uses_.assign(static_cast<size_t>(args_.lanes.Count() * kv_blocks_),
                 walks_once ? 0 : kShareFrom);
    for (int64_t i = 0; i < args_.rows->Count(); ++i) {
      const int64_t lane = args_.rows->rows[static_cast<size_t>(i)].lane;
      for (int32_t block : args_.rows->KvBlocks(i)) {
        uint8_t& uses = uses_[static_cast<size_t>(lane * kv_blocks_ + block)];
        uses = std::min<uint8_t>(uses + 1, kShareFrom);
      }
    }
  }
  bool Shared(int64_t lane, int64_t kv_block) const {
    return uses_[static_cast<size_t>(lane * kv_blocks_ + kv_block)] >= kShareFrom;
  }

  // Lanes with rows whose tails the call makes itself.
  void ListMeans() {
    for (const AttentionRows::Row& row : args_.rows->rows) {
      if (args_.tails.Has(row.lane)) lanes_of_means_.push_back(row.lane);
    }
    std::ranges::sort(lanes_of_means_);
    const auto rest = std::ranges::unique(lanes_of_means_);
    lanes_of_means_.erase(rest.begin(), rest.end());
  }
  void PlaceMeans(float* at) {
    if (lanes_of_means_.empty()) return;
    means_.resize(static_cast<size_t>(args_.lanes.Count()));
    for (int32_t lane : lanes_of_means_) {
      means_[static_cast<size_t>(lane)] = {at, at + args_.head_dim, 2 * args_.head_dim};
      at += kv_blocks_ * 2 * args_.head_dim;
    }
  }
  const LaneMeans& Means(int64_t lane) const {
    return (means_.empty() ? args_.tails.means : std::span(means_))[static_cast<size_t>(lane)];
  }

  // Block by block, by whoever is free, before any row begins.
  void MakeMeans(int thread) {
    const int64_t total = std::ssize(lanes_of_means_) * kv_blocks_;
    for (int64_t i; !failed_ && (i = next_mean_++) < total;) {
      const int64_t lane = lanes_of_means_[static_cast<size_t>(i / kv_blocks_)];
      const int64_t block = i % kv_blocks_;
      auto make = [&](const TokenSource& source, const float* to) {
        BlockMeans({.source = &source,
                    .lanes = args_.lanes,
                    .lane = lane,
                    .grid = args_.grid,
                    .head_dim = args_.head_dim,
                    .token_at_position = Order(args_.kv_order, lane),
                    .blocks = {block, block + 1},
                    .stride = 0},
                   const_cast<float*>(to) + block * Means(lane).stride);
      };
      make(args_.k, Means(lane).k);
      make(args_.v, Means(lane).v);
      means_made_.fetch_add(1, std::memory_order_release);
      Tick(thread);
    }
    WaitUntil([&] { return means_made_.load(std::memory_order_acquire) == total; }, thread);
  }

  // The blocks that count by their means: all but those that the task's rows keep.
  void ListSkipped(const Schedule::Task& task, std::vector<int32_t>& skipped) const {
    skipped.clear();
    if (!args_.tails.Has(task.lane)) return;
    const int64_t q_block = QBlock(task.rows[0]);
    auto kept = task.kv_blocks.begin();
    for (int32_t block = 0; block < kv_blocks_; ++block) {
      const bool listed = kept != task.kv_blocks.end() && *kept == block;
      kept += listed;
      if (args_.tails.kept != nullptr ? !args_.tails.kept->Get(task.lane, q_block, block)
                                      : !listed) {
        skipped.push_back(block);
      }
    }
  }

  // Thread t begins with row t, so that as many threads compute as were asked for, however late
  // they wake. The next row is claimed before the present one is computed, to be prefetched.
  void Work(int thread) {
    const auto total = static_cast<int64_t>(schedule_.Tasks().size());
    auto at = [&](int64_t task) {
      return task < total ? &schedule_.Tasks()[static_cast<size_t>(task)] : nullptr;
    };
    for (int64_t task = thread; task < total && !failed_;) {
      const int64_t next = next_task_++;
      Compute(*at(task), at(next), thread);
      task = next;
    }
  }

  // next: of the thread, or null.
  void Compute(const Schedule::Task& task, const Schedule::Task* next, int thread) {
    const int64_t before = task.slot - schedule_.Buffers();
    if (packs_ && before >= 0) {
      WaitUntil(
          [&] {
            return tasks_left_[static_cast<size_t>(before)].load(std::memory_order_acquire) == 0;
          },
          thread);
    }
    Own& own = own_[static_cast<size_t>(thread)];
    own.next = 0;
    auto tick = [this, thread] { Tick(thread); };
    auto strips = [&](int64_t kv_block) { return Strips(task.slot, task.lane, kv_block, thread); };
    auto upcoming = [&](size_t index, PrefetchRows* add) {
      const size_t own_blocks = task.kv_blocks.size();
      if (index < own_blocks) return Upcoming(task, index, add);
      return next != nullptr ? Upcoming(*next, index - own_blocks, add) : UpcomingBlock();
    };
    auto next_rows = [&](PrefetchRows* add) {
      if (next != nullptr) AddQueriesAndOutput(*next, *add);
    };
    ListSkipped(task, own.skipped);
    own.soon.row_bytes = args_.head_dim * DTypeBytes(args_.out.dtype());
    RowTask work = {.args = &args_,
                    .lane = task.lane,
                    .rows = task.rows,
                    .kv_blocks = task.kv_blocks,
                    .skipped = own.skipped,
                    .means = own.skipped.empty() ? LaneMeans() : Means(task.lane),
                    .strips = strips,
                    .upcoming = upcoming,
                    .next_rows = next_rows,
                    .soon = &own.soon,
                    .tick = {}};
    if (args_.poll && thread == 0) work.tick = tick;
    ComputeRows(work, own.scratch);
    tasks_left_[static_cast<size_t>(task.slot)].fetch_sub(1, std::memory_order_release);
    Tick(thread);
  }

  // The strips of a kv block: as they came, or packed, now or earlier.
  BlockStrips Strips(int64_t slot, int64_t lane, int64_t kv_block, int thread) {
    BlockStrips strips;
    if (packs_ && Shared(lane, kv_block)) {
      strips = SharedStrips(slot, kv_block);
      PackOnce(
          State(slot, kv_block), slot, [&] { Pack(strips, lane, kv_block); }, thread);
    } else if (packs_) {
      Own& own = own_[static_cast<size_t>(thread)];
      const int64_t at = own.next++ % OwnBlocks() * per_block_;
      strips = {own.k.data() + at, own.v.data() + at};
      Pack(strips, lane, kv_block);
    }
    return OrGiven(strips, lane, kv_block);
  }

  BlockStrips SharedStrips(int64_t slot, int64_t kv_block) const {
    const int64_t at = (slot % schedule_.Buffers() * kv_blocks_ + kv_block) * per_block_;
    return {shared_k_.data() + at, shared_v_.data() + at};
  }
  BlockStrips OrGiven(BlockStrips strips, int64_t lane, int64_t kv_block) const {
    auto given = [&](const TokenSource& source) {
      return source.strips.strips.data() + lane * source.strips.strips_per_lane +
             kv_block * per_block_;
    };
    if (args_.k.IsStrips()) strips.k = given(args_.k);
    if (args_.v.IsStrips()) strips.v = given(args_.v);
    return strips;
  }

  // What of the task's index-th kv block can be fetched: strips that are ready, or tokens.
  UpcomingBlock Upcoming(const Schedule::Task& task, size_t index, PrefetchRows* add) {
    if (index >= task.kv_blocks.size()) return {};
    const int64_t block = task.kv_blocks[index];
    const Range tokens = args_.grid.KvBlockTokens(block);
    const int64_t size = CeilDiv(tokens.size(), kStripTokens);
    if (!packs_) return {size, OrGiven({}, task.lane, block)};
    if (Shared(task.lane, block)) {
      const int64_t state = State(task.slot, block).load(std::memory_order_relaxed);
      if (state == Ready(task.slot))
        return {size, OrGiven(SharedStrips(task.slot, block), task.lane, block)};
      if (state == Packing(task.slot)) return {size, {}};
    }
    if (add == nullptr) return {size, {}};
    const int32_t* order = Order(args_.kv_order, task.lane);
    AddRows(args_.k, task.lane, order, tokens, *add);
    AddRows(args_.v, task.lane, order, tokens, *add);
    return {size, {}};
  }

  // States of kv blocks, by buffer. They grow with the slot that uses the buffer, so that nobody
  // has to reset them.
  std::atomic<int64_t>& State(int64_t slot, int64_t kv_block) {
    return states_[static_cast<size_t>(slot % schedule_.Buffers() * kv_blocks_ + kv_block)];
  }
  static int64_t Packing(int64_t slot) { return 2 * slot + 1; }
  static int64_t Ready(int64_t slot) { return 2 * slot + 2; }

  // Calls pack(), or waits until another thread has.
  template <class PackFunction>
  void PackOnce(std::atomic<int64_t>& state, int64_t slot, const PackFunction& pack, int thread) {
    int64_t seen = state.load(std::memory_order_acquire);
    if (seen == Ready(slot)) return;
    if (seen < Packing(slot) && state.compare_exchange_strong(seen, Packing(slot))) {
      pack();
      state.store(Ready(slot), std::memory_order_release);
    } else {
      WaitUntil([&] { return state.load(std::memory_order_acquire) == Ready(slot); }, thread);
    }
  }

  void Pack(const BlockStrips& to, int64_t lane, int64_t kv_block) {
    const Range tokens = args_.grid.KvBlockTokens(kv_block);
    auto pack = [&](const TokenSource& source, const float* const* strips) {
      if (source.IsStrips()) return;
      PackStrips({.layout = StripLayout::kKeyValue,
                  .source = &source,
                  .lanes = args_.lanes,
                  .lane = lane,
                  .tokens = args_.grid.kv_tokens,
                  .head_dim = args_.head_dim,
                  .token_at_position = Order(args_.kv_order, lane),
                  .strips = {tokens.begin / kStripTokens, CeilDiv(tokens.end, kStripTokens)},
                  .pitch = pitch_},
                 const_cast<float*>(strips[0]));
    };
    pack(args_.k, to.k);
    pack(args_.v, to.v);
  }

  int64_t QBlock(int32_t row) const { return args_.rows->rows[static_cast<size_t>(row)].q_block; }
  static const int32_t* Order(std::span<const int32_t* const> orders, int64_t lane) {
    return orders.empty() ? nullptr : orders[static_cast<size_t>(lane)];
  }

  void AddQueriesAndOutput(const Schedule::Task& task, PrefetchRows& list) const {
    const int32_t* order = Order(args_.q_order, task.lane);
    for (int32_t row : task.rows)
      AddRows(args_.q, task.lane, order, args_.grid.QBlockTokens(QBlock(row)), list);
    for (int32_t row : task.rows)
      AddOutput(task.lane, order, args_.grid.QBlockTokens(QBlock(row)), list);
  }

  void AddOutput(int64_t lane, const int32_t* order, Range positions, PrefetchRows& list) const {
    if (!args_.out_strips.Used() && args_.out.Elements() >= kStreamFloats) return;
    if (!args_.out_strips.Used())
      return AddRows(ConstView(args_.out), lane, order, positions, list);
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      const OutputStrip& strip = args_.out_strips.At(lane, p / kStripTokens);
      list.rows.push_back(strip.out + p % kStripTokens * strip.stride);
    }
  }

  void AddRows(const TokenSource& source, int64_t lane, const int32_t* order, Range positions,
               PrefetchRows& list) const {
    if (source.IsStrips() || source.IsProducer()) return;
    const int64_t batch = args_.lanes.BatchOf(lane), head = args_.lanes.HeadOf(lane);
    list.row_bytes = std::max(list.row_bytes, args_.head_dim * DTypeBytes(source.view.dtype()));
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      list.rows.push_back(source.view.Address(batch, order ? order[p] : p, head, 0));
    }
  }

  template <class Condition>
  void WaitUntil(const Condition& condition, int thread) {
    while (!condition()) {
      if (failed_) throw Abandoned();
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
  const Schedule schedule_;
  const int64_t kv_blocks_, per_block_, pitch_;
  const bool packs_;
  std::vector<const float*> shared_k_, shared_v_;  // [buffers][kv_blocks][strips of a block]
  std::vector<uint8_t> uses_;                      // [lanes][kv_blocks], up to kShareFrom
  std::vector<Own> own_;                           // by thread
  std::vector<int32_t> lanes_of_means_;            // whose means the call makes
  std::vector<LaneMeans> means_;                   // [lanes], of these
  std::vector<std::atomic<int64_t>> states_;       // [buffers][kv_blocks]
  std::vector<std::atomic<int64_t>> tasks_left_;   // by slot
  std::atomic<int64_t> next_mean_{0}, means_made_{0};
  std::atomic<int64_t> next_task_;
  std::atomic<int> working_;  // threads that are not done
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
