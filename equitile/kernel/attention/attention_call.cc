#include "equitile/kernel/attention/attention_call.h"

#include <algorithm>
#include <thread>

namespace equitile {
namespace {

// The query strips of a task's rows, group by group.
class GroupReader {
 public:
  GroupReader(const AttentionArgs& args, const RowTask& task)
      : args_(args), task_(task), left_(Strips(0)) {}

  bool AtEnd() const { return row_ == task_.rows.size(); }
  QueryGroup Next(std::byte* memory) {
    QueryGroup group(args_, task_.lane, task_.kv_blocks, memory);
    const int64_t most = GroupStrips(args_.head_dim);
    while (!AtEnd() && group.size < most) {
      group.row[group.size] = task_.rows[row_];
      group.strip[group.size++] = left_.begin++;
      if (left_.empty()) left_ = Strips(++row_);
    }
    return group;
  }

 private:
  Range Strips(size_t row) const {
    if (row == task_.rows.size()) return {};
    const Range tokens = args_.grid.QBlockTokens(args_.QBlock(task_.rows[row]));
    return {tokens.begin / kStripTokens, CeilDiv(tokens.end, kStripTokens)};
  }

  const AttentionArgs& args_;
  const RowTask& task_;
  size_t row_ = 0;
  Range left_;  // of the row
};

// The strips of a task's kept blocks, chunk by chunk, packed where they are not yet.
class ChunkReader {
 public:
  ChunkReader(const AttentionArgs& args, PackedKv& kv, const RowTask& task, int thread)
      : args_(args), kv_(kv), task_(task), thread_(thread) {}

  bool AtEnd() const { return block_ == task_.kv_blocks.size(); }
  // Empty at the end.
  Chunk Next() {
    Chunk chunk;
    chunk.first = read_;
    while (static_cast<int64_t>(chunk.size) < kChunkStrips && !AtEnd()) {
      const int64_t block = task_.kv_blocks[block_];
      if (in_block_ == 0) strips_ = kv_.Get(task_, block, thread_);
      const int64_t position = block * args_.grid.block_tokens + in_block_ * kStripTokens;
      chunk.Add(strips_.k[in_block_], strips_.v[in_block_], position,
                std::min(kStripTokens, args_.grid.kv_tokens - position));
      if (++in_block_ == kv_.StripsOf(block)) {
        in_block_ = 0;
        ++block_;
      }
    }
    read_ += static_cast<int64_t>(chunk.size);
    return chunk;
  }

 private:
  const AttentionArgs& args_;
  PackedKv& kv_;
  const RowTask& task_;
  const int thread_;
  int64_t read_ = 0;  // strips
  size_t block_ = 0;
  int64_t in_block_ = 0;
  BlockStrips strips_;  // of the block
};

// The same strips a chunk earlier, as far as they are there, and behind them those of the task that
// the thread walks then.
class EarlyReader {
 public:
  EarlyReader(PackedKv& kv, const RowTask& task, const RowTask* then)
      : kv_(kv), task_(&task), then_(then) {
    // The first chunk was read early at the end of the task before.
    NextReads passed;
    for (int64_t i = 0; i < kChunkStrips && first_; ++i) Step(passed, false);
  }

  // `count` strips further.
  void Read(size_t count, NextReads& reads) {
    for (size_t i = 0; i < count; ++i) Step(reads, true);
  }

 private:
  void Step(NextReads& reads, bool tokens) {
    if (task_ == nullptr) return;
    const int64_t block = task_->kv_blocks[block_];
    if (in_block_ == 0) strips_ = kv_.Look(*task_, block, tokens ? &reads : nullptr);
    if (strips_.k != nullptr) reads.AddStrips(strips_.k[in_block_], strips_.v[in_block_]);
    if (++in_block_ < kv_.StripsOf(block)) return;
    in_block_ = 0;
    if (++block_ < task_->kv_blocks.size()) return;
    block_ = 0;
    first_ = false;
    task_ = then_ != nullptr && !then_->kv_blocks.empty() ? then_ : nullptr;
    then_ = nullptr;
  }

  PackedKv& kv_;
  const RowTask* task_;  // null: at the end
  const RowTask* then_;
  bool first_ = true;  // at the first of the two
  size_t block_ = 0;
  int64_t in_block_ = 0;
  BlockStrips strips_;  // of the block
};

}  // namespace

AttentionCall::AttentionCall(const AttentionArgs& args, int threads, Workspace& workspace)
    : args_(args),
      progress_(args.poll),
      schedule_(args, threads),
      kv_(args, schedule_, threads, progress_),
      tails_(args, progress_),
      threads_(static_cast<size_t>(threads)),
      next_task_(threads),
      working_(threads) {
  auto* shared = workspace.Shared<std::byte>(kv_.SharedBytes() + tails_.SharedBytes());
  kv_.Place(shared);
  tails_.Place(shared + kv_.SharedBytes());
  workspace.ReservePerThread<std::byte>(
      threads, kv_.ThreadBytes() + tails_.ThreadBytes() + GroupMemory::Bytes(args));
  for (int thread = 0; thread < threads; ++thread) {
    auto* own = workspace.ForThread<std::byte>(thread);
    kv_.PlaceThread(thread, own);
    Thread& mine = threads_[static_cast<size_t>(thread)];
    mine.means = own + kv_.ThreadBytes();
    mine.group = mine.means + tails_.ThreadBytes();
  }
}

void AttentionCall::Run(int thread) {
  try {
    tails_.Make(thread);
    Work(thread);
  } catch (const Progress::Abandoned&) {
  } catch (...) {
    progress_.Fail();
    --working_;
    throw;
  }
  --working_;
  // While others still compute, the calling thread has nothing to do but to poll.
  while (thread == 0 && args_.poll && working_ > 0) {
    progress_.Tick(thread);
    std::this_thread::yield();
  }
}

// Thread t begins with task t, so that as many threads compute as were asked for, however late they
// wake. The next task is claimed before the present one is computed, so that it is known what is
// read next.
void AttentionCall::Work(int thread) {
  const auto total = static_cast<int64_t>(schedule_.Tasks().size());
  auto at = [&](int64_t task) {
    return task < total ? &schedule_.Tasks()[static_cast<size_t>(task)] : nullptr;
  };
  for (int64_t task = thread; task < total && !progress_.Failed();) {
    const int64_t next = next_task_++;
    Compute(*at(task), at(next), thread);
    task = next;
  }
}

// next: of the thread, or null.
void AttentionCall::Compute(const RowTask& task, const RowTask* next, int thread) {
  kv_.Begin(task, thread);
  Thread& mine = threads_[static_cast<size_t>(thread)];
  tails_.ListSkipped(task, mine.skipped);
  for (GroupReader groups(args_, task); !groups.AtEnd();) {
    QueryGroup group = groups.Next(mine.group);
    BeginGroup(group);
    WalkKept(group, task, next, groups.AtEnd(), thread);
    WalkMeans(group, thread);
    FinishGroup(group);
  }
  kv_.End(task);
  progress_.Tick(thread);
}

// `last`: nothing of the task comes after this group.
void AttentionCall::WalkKept(QueryGroup& group, const RowTask& task, const RowTask* next, bool last,
                             int thread) {
  if (task.kv_blocks.empty()) return;
  NextReads& reads = threads_[static_cast<size_t>(thread)].next;
  ChunkReader reader(args_, kv_, task, thread);
  EarlyReader early(kv_, task, last ? next : &task);
  for (Chunk chunk = reader.Next(); chunk.size > 0; chunk = reader.Next()) {
    reads.Clear();
    // Not earlier: what is touched in the last chunk is still in L2 when the thread's next task
    // begins.
    if (reader.AtEnd() && last && next != nullptr) AddQueriesAndOutput(*next, reads);
    early.Read(chunk.size, reads);
    AddChunk(group, chunk, reads);
    progress_.Tick(thread);
  }
}

void AttentionCall::WalkMeans(QueryGroup& group, int thread) {
  Thread& mine = threads_[static_cast<size_t>(thread)];
  if (mine.skipped.empty()) return;
  mine.next.Clear();
  MeansReader reader(args_, group.lane, tails_.Of(group.lane), mine.skipped, mine.means);
  for (Chunk chunk = reader.Next(); chunk.size > 0; chunk = reader.Next()) {
    AddChunk(group, chunk, mine.next);
    progress_.Tick(thread);
  }
}

void AttentionCall::AddQueriesAndOutput(const RowTask& task, NextReads& reads) const {
  const int32_t* order = args_.QOrder(task.lane);
  for (int32_t row : task.rows) {
    reads.AddTokens(args_.q, args_.lanes, task.lane, order,
                    args_.grid.QBlockTokens(args_.QBlock(row)));
  }
  if (!args_.out_strips.Used()) {
    if (args_.out.Elements() >= kStreamFloats) return;
    for (int32_t row : task.rows) {
      reads.AddTokens(ConstView(args_.out), args_.lanes, task.lane, order,
                      args_.grid.QBlockTokens(args_.QBlock(row)));
    }
    return;
  }
  reads.row_bytes = std::max(reads.row_bytes, args_.head_dim * static_cast<int64_t>(sizeof(float)));
  for (int32_t row : task.rows) {
    const Range positions = args_.grid.QBlockTokens(args_.QBlock(row));
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      const OutputStrip& strip = args_.out_strips.At(task.lane, p / kStripTokens);
      reads.rows.push_back(strip.out + p % kStripTokens * strip.stride);
    }
  }
}

}  // namespace equitile
