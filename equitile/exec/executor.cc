#include "equitile/exec/executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "equitile/base/error.h"
#include "equitile/exec/token_rows.h"
#include "equitile/plan/mask_hash.h"
#include "equitile/plan/walker.h"

namespace equitile {
namespace {

enum Tag : int32_t { kInputTag, kPassTag, kOutputTag, kTags };

int32_t TagOf(int32_t stage, Tag tag) { return stage * kTags + tag; }

// At least as large as ever asked for; grows, never shrinks.
class GrowingBuffer {
 public:
  float* Get(int64_t floats) {
    if (buffer_.size() < floats) buffer_ = AlignedBuffer<float>(floats);
    return buffer_.data();
  }
  int64_t Bytes() const { return buffer_.size() * static_cast<int64_t>(sizeof(float)); }

 private:
  AlignedBuffer<float> buffer_;
};

// Itineraries that are remembered: as many masks as a few layers take turns with, while their row
// lists stay small beside the buffers.
constexpr size_t kKnown = 8;

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

struct Executor::Buffers {
  GrowingBuffer home;
  // Inputs of a stage: two that take turns, and one for the first stage of a ring, whose queries
  // stay.
  std::array<GrowingBuffer, 3> inputs;
  std::array<GrowingBuffer, 2> outputs;
  GrowingBuffer lse;
  std::vector<const float*> q, k, v;  // [lanes][strips]
  std::vector<OutputStrip> out;       // [lanes][strips]
  AttentionWorkspace workspace;
  RunRecord record;
  std::optional<LaneOrders> orders;
  Problem orders_problem;

  int64_t Bytes() const {
    int64_t bytes = home.Bytes() + lse.Bytes() + workspace.Bytes();
    for (const auto& buffer : inputs) bytes += buffer.Bytes();
    for (const auto& buffer : outputs) bytes += buffer.Bytes();
    return bytes;
  }
};

// The visitor of Walk that does the work.
class Executor::Walker {
 public:
  Walker(Executor& executor, const Itinerary& itinerary, const LayerCall& call)
      : comm_(executor.comm_),
        pool_(executor.pool_),
        options_(executor.options_),
        wire_(executor.wire_),
        buffers_(*executor.buffers_),
        record_(executor.buffers_->record),
        it_(itinerary),
        call_(call),
        problem_(itinerary.program.problem),
        sizes_(itinerary.sizes),
        head_dim_(itinerary.sizes.head_dim),
        line_(HomeLine(*itinerary.homes, problem_, itinerary.rank)),
        strips_per_lane_(CeilDiv(problem_.grid.q_tokens, kStripTokens)),
        kv_strips_per_lane_(CeilDiv(problem_.grid.kv_tokens, kStripTokens)),
        letters_(itinerary.stages.size()) {
    record_.Clear(it_.stages.size());
    record_.begin = comm_.Now();
    if (!buffers_.orders || !(buffers_.orders_problem == problem_)) {
      buffers_.orders.emplace(problem_);
      buffers_.orders_problem = problem_;
    }
    Allocate();
  }

  // --- Steps of Walk ---

  void HomeSends(int32_t stage) {
    SetPlace(stage);
    PackHome(stage);
    if (options_.overlap) SendInputs(stage);
  }

  void Receive(int32_t stage) {
    Hold(At(stage).q_tokens * QBytes() + At(stage).kv_tokens * 2 * QBytes());
    if (options_.overlap) PostInputs(stage);
  }

  void Await(int32_t stage) {
    SetPlace(stage);
    if (!options_.overlap) {
      SendInputs(stage);
      PostInputs(stage);
    }
    PostArrivals();
    Letters& letters = letters_[Index(stage)];
    WaitForAll(letters.inputs, RunWait::For::kInputs, stage);
    WaitForAll(letters.passes_in, RunWait::For::kPass, stage);
    if (!options_.overlap) {
      AwaitSends(stage);
      for (Letter& letter : letters.passes_out) wire_.Wait(letter);
    }
    Hold(At(stage).q_tokens * OBytes());
    if (!it_.is_local) {
      Gather(stage);
      FillInputTables(stage);
    }
  }

  void Compute(int32_t stage) {
    if (!it_.is_ring && stage >= 2) AwaitReturns(stage - 2);
    if (!it_.is_local && !(it_.is_ring && stage > 0)) FillOutputTable(OutputStage(stage));
    PostArrivals();
    const double begin = comm_.Now();
    if (options_.modelled_seconds) {
      ElapseWork(At(stage).work);
    } else if (it_.is_local) {
      ComputeFromSources(stage);
    } else {
      ComputeFromStrips(stage);
    }
    const double end = comm_.Now();
    stats_.compute_seconds += end - begin;
    AddEvent(RunEvent::Kind::kCompute, begin, end, stage);
  }

  void Return(int32_t stage) {
    RankStage const& now = At(stage);
    const bool leaves = !it_.is_local && OutputStage(stage) == stage;
    held_ -= now.kv_tokens * 2 * QBytes() + std::exchange(leaving_, 0);
    if (leaves) {
      Scatter(stage);
      SendOutput(stage);
    }
    if (OutputStage(stage) == stage) {
      const int64_t tokens = At(now.q_stage).q_tokens;
      held_ -= tokens * QBytes();
      leaving_ = tokens * OBytes();
    }
    record_.returned[Index(stage)] = comm_.Now();
    if (!options_.overlap && leaves) {
      AwaitSends(stage);
      TakeArrivals(stage);
      for (Letter& letter : letters_[Index(stage)].returns) wire_.Wait(letter);
    }
  }

  void Finish() {
    const int32_t stages = static_cast<int32_t>(it_.stages.size());
    for (int32_t stage = 0; stage < stages; ++stage) AwaitSends(stage);
    for (int32_t stage = 0; stage < stages; ++stage) TakeArrivals(stage);
    for (int32_t stage = 0; stage < stages; ++stage) {
      for (Letter& letter : letters_[Index(stage)].passes_out) Done(letter, stage);
      for (Letter& letter : letters_[Index(stage)].returns) Done(letter, stage);
    }
    record_.end = comm_.Now();
    stats_.seconds = record_.end - record_.begin;
    stats_.allocated_bytes = buffers_.Bytes();
  }

  const RunStats& stats() const { return stats_; }

 private:
  // All messages of one stage.
  struct Letters {
    std::vector<Letter> sends, inputs, passes_in, passes_out, returns;
    std::vector<Letter> arrivals;  // [sends] of its output stage; not posted until the send is done
    bool taken = false;            // output for this home is in its place
  };

  const RankStage& At(int32_t stage) const { return it_.stages[Index(stage)]; }
  int64_t QBytes() const { return head_dim_ * DTypeBytes(options_.wire); }
  int64_t OBytes() const { return QBytes() + int64_t{sizeof(float)}; }
  // The stage after which the output of rows of `stage` goes home.
  int32_t OutputStage(int32_t stage) const {
    return it_.is_ring ? static_cast<int32_t>(it_.stages.size()) - 1 : stage;
  }
  float* InputBuffer(int32_t stage) {
    return input_[Index(it_.is_ring && stage == 0 ? 2 : stage % 2)];
  }
  float* OutputBuffer(int32_t stage) { return output_[Index(stage % 2)]; }

  void Allocate() {
    const int64_t lanes = problem_.lanes.Count();
    if (it_.is_local) return;
    home_ = buffers_.home.Get(it_.home_floats);
    std::array<int64_t, 3> in = {0, 0, 0};
    std::array<int64_t, 2> out = {0, 0};
    for (size_t stage = 0; stage < it_.stages.size(); ++stage) {
      int64_t& input = in[it_.is_ring && stage == 0 ? 2 : stage % 2];
      input = std::max(input, it_.stages[stage].input_floats);
      out[stage % 2] = std::max(out[stage % 2], it_.stages[stage].output_floats);
    }
    for (size_t i = 0; i < in.size(); ++i) input_[i] = buffers_.inputs[i].Get(in[i]);
    for (size_t i = 0; i < out.size(); ++i) output_[i] = buffers_.outputs[i].Get(out[i]);
    lse_ = call_.lse != nullptr ? call_.lse : buffers_.lse.Get(problem_.lanes.heads * line_.size());
    buffers_.q.resize(Index(lanes * strips_per_lane_));
    buffers_.out.resize(Index(lanes * strips_per_lane_));
    buffers_.k.resize(Index(lanes * kv_strips_per_lane_));
    buffers_.v.resize(Index(lanes * kv_strips_per_lane_));
  }

  void SetPlace(int32_t stage) { comm_.SetPlace(call_.step, call_.layer, stage); }

  void Hold(int64_t bytes) {
    held_ += bytes;
    stats_.buffer_bytes = std::max(stats_.buffer_bytes, held_);
  }

  void AddEvent(RunEvent::Kind kind, double begin, double end, int32_t stage, int32_t peer = -1,
                int64_t bytes = 0) {
    record_.events.push_back({kind, begin, end, stage, peer, bytes});
  }

  template <typename Work>
  void Packing(int32_t stage, const Work& work) {
    const double begin = comm_.Now();
    work();
    const double end = comm_.Now();
    stats_.pack_seconds += end - begin;
    AddEvent(RunEvent::Kind::kPack, begin, end, stage);
  }

  HomeRowsArgs HomeRows(int64_t lane) const {
    return {.homes = it_.homes.get(),
            .problem = &problem_,
            .order = buffers_.orders->Of(lane),
            .rank = it_.rank};
  }

  // --- Home to wire ---

  void PackHome(int32_t stage) {
    const RankStage& now = At(stage);
    if (it_.is_local) return;
    Packing(stage, [&] {
      pool_.ParallelFor(std::ssize(now.pack), [&](int64_t i, int) { Pack(now.pack[Index(i)]); });
      for (const Parcel& parcel : now.sends) {
        pool_.ParallelFor(std::ssize(parcel.kv_blocks), [&](int64_t i, int) {
          const BlockRows& block = parcel.kv_blocks[Index(i)];
          float* k = home_ + parcel.base + parcel.kv_rows_at;
          WriteRows(call_.k, block, k);
          WriteRows(call_.v, block, k + parcel.kv_rows * head_dim_);
        });
        pool_.ParallelFor(std::ssize(parcel.q_blocks), [&](int64_t i, int) {
          WriteRows(call_.q, parcel.q_blocks[Index(i)], home_ + parcel.base + parcel.q_rows_at);
        });
      }
      pool_.ParallelFor(std::ssize(now.copy), [&](int64_t i, int) {
        const CopyJob& job = now.copy[Index(i)];
        std::memcpy(home_ + job.to, home_ + job.from, Index(job.floats) * sizeof(float));
      });
    });
  }

  void Pack(const PackJob& job) {
    PackArgs args{.layout = job.is_q ? StripLayout::kQuery : StripLayout::kKeyValue,
                  .source = job.is_q ? &call_.q : &call_.k,
                  .lanes = problem_.lanes,
                  .lane = job.run.lane,
                  .tokens = job.is_q ? problem_.grid.q_tokens : problem_.grid.kv_tokens,
                  .head_dim = head_dim_,
                  .token_at_position = nullptr,
                  .strips = {job.run.first, job.run.first + job.run.count},
                  .pitch = job.is_q ? sizes_.q : sizes_.kv};
    PackStrips(args, home_ + job.run.at);
    if (job.is_q) return;
    args.source = &call_.v;
    PackStrips(args, home_ + job.run.at + sizes_.q);
  }

  void WriteRows(const TokenSource& source, const BlockRows& block, float* rows) {
    ForEachHomeRow(HomeRows(block.lane), block, [&](int64_t token, int64_t row) {
      ReadRows(source, problem_.lanes, block.lane, token, 1, head_dim_, rows + row * head_dim_);
    });
  }

  void SendInputs(int32_t stage) {
    Letters& letters = letters_[Index(stage)];
    for (const Parcel& parcel : At(stage).sends) {
      letters.sends.push_back(
          wire_.Send(home_ + parcel.base, parcel.floats, 0, parcel.peer, TagOf(stage, kInputTag)));
      stats_.bytes_sent += letters.sends.back().bytes;
      letters.arrivals.emplace_back();
    }
    record_.inputs_sent[Index(stage)] = comm_.Now();
  }

  // --- Wire to kernel ---

  void PostInputs(int32_t stage) {
    const RankStage& now = At(stage);
    Letters& letters = letters_[Index(stage)];
    float* buffer = InputBuffer(stage);
    // What was passed on from this buffer must have left it.
    if (it_.is_ring && stage >= 2) {
      for (Letter& letter : letters_[Index(stage - 1)].passes_out) Done(letter, stage - 1);
    }
    for (const Parcel& parcel : now.receives) {
      letters.inputs.push_back(wire_.Receive(buffer + parcel.base, parcel.floats, 0, parcel.peer,
                                             TagOf(stage, kInputTag)));
      stats_.bytes_received += letters.inputs.back().bytes;
    }
    for (const Segment& segment : now.segments) {
      if (stage == 0) break;
      letters.passes_in.push_back(wire_.Receive(buffer + segment.base, segment.floats, 0,
                                                now.pass_from, TagOf(stage, kPassTag)));
      stats_.bytes_received += letters.passes_in.back().bytes;
    }
    for (const Segment& segment : now.passed_on) {
      letters.passes_out.push_back(wire_.Send(SegmentAt(stage - 1, segment.source), segment.floats,
                                              0, now.pass_to, TagOf(stage, kPassTag)));
      stats_.bytes_sent += letters.passes_out.back().bytes;
    }
    record_.passed[Index(stage)] = comm_.Now();
  }

  const float* SegmentAt(int32_t stage, int32_t source) {
    for (const Segment& segment : At(stage).segments) {
      if (segment.source != source) continue;
      const bool at_home = stage == 0 && source == it_.rank;
      return (at_home ? home_ : InputBuffer(stage)) + segment.base;
    }
    EQ_CHECK(false, "stage {}: nothing of home {} to pass on", stage, source);
  }

  void WaitForAll(std::vector<Letter>& letters, RunWait::For what, int32_t stage) {
    if (letters.empty()) return;
    RunWait wait{.what = what, .stage = stage, .begin = comm_.Now(), .end = 0, .missing = {}};
    for (Letter& letter : letters) {
      if (!wire_.Test(letter)) wait.missing.push_back(letter.peer);
    }
    for (Letter& letter : letters) wire_.Wait(letter);
    wait.end = comm_.Now();
    stats_.wait_seconds += wait.end - wait.begin;
    AddEvent(RunEvent::Kind::kWait, wait.begin, wait.end, stage);
    for (const Letter& letter : letters)
      AddEvent(RunEvent::Kind::kReceive, letter.posted, wait.end, stage, letter.peer, letter.bytes);
    record_.waits.push_back(std::move(wait));
  }

  // Packs blocks of lanes that are not in home order from rows of all homes.
  void Gather(int32_t stage) {
    const RankStage& now = At(stage);
    if (now.gather_kv.blocks.empty() && now.gather_q.blocks.empty()) return;
    std::vector<const Parcel*> from(Index(it_.ranks), nullptr);
    for (const Parcel& parcel : now.receives) from[Index(parcel.peer)] = &parcel;
    float* buffer = InputBuffer(stage);
    auto pack = [&](const GatheredBlocks& gathered, int64_t i, const TokenSource& source,
                    StripLayout layout, int64_t rows_of_v, int64_t pitch, float* to) {
      const bool is_q = layout == StripLayout::kQuery;
      const GatheredBlock& block = gathered.blocks[Index(i)];
      const int32_t* order = buffers_.orders->Of(block.lane);
      const Range positions = problem_.grid.QBlockTokens(block.block);
      std::vector<float> rows(Index(positions.size() * head_dim_));
      std::vector<int64_t> next_row;
      ForEachGatheredRow(
          {.itinerary = &it_, .gathered = &gathered, .index = i, .order = order}, next_row,
          [&](int64_t position, int64_t token, int32_t home, int64_t row) {
            float* to_row = rows.data() + (position - positions.begin) * head_dim_;
            if (home == it_.rank) {
              ReadRows(source, problem_.lanes, block.lane, token, 1, head_dim_, to_row);
              return;
            }
            const Parcel& parcel = *from[Index(home)];
            const int64_t at = is_q ? parcel.q_rows_at
                                    : parcel.kv_rows_at + rows_of_v * parcel.kv_rows * head_dim_;
            std::memcpy(to_row, buffer + parcel.base + at + row * head_dim_,
                        Index(head_dim_) * sizeof(float));
          });
      auto produce = [&](int64_t, int64_t first, int64_t count, float* out) {
        std::memcpy(out, rows.data() + (first - positions.begin) * head_dim_,
                    Index(count * head_dim_) * sizeof(float));
      };
      const TokenSource gathered_rows{RowProducer(produce)};
      PackStrips({.layout = layout,
                  .source = &gathered_rows,
                  .lanes = problem_.lanes,
                  .lane = block.lane,
                  .tokens = problem_.grid.q_tokens,
                  .head_dim = head_dim_,
                  .token_at_position = nullptr,
                  .strips = {positions.begin / kStripTokens, CeilDiv(positions.end, kStripTokens)},
                  .pitch = pitch},
                 to);
    };
    Packing(stage, [&] {
      pool_.ParallelFor(std::ssize(now.gather_kv.blocks), [&](int64_t i, int) {
        float* to = buffer + now.gather_kv.blocks[Index(i)].at;
        pack(now.gather_kv, i, call_.k, StripLayout::kKeyValue, 0, sizes_.kv, to);
        pack(now.gather_kv, i, call_.v, StripLayout::kKeyValue, 1, sizes_.kv, to + sizes_.q);
      });
      pool_.ParallelFor(std::ssize(now.gather_q.blocks), [&](int64_t i, int) {
        pack(now.gather_q, i, call_.q, StripLayout::kQuery, 0, sizes_.q,
             buffer + now.gather_q.blocks[Index(i)].at);
      });
    });
  }

  // --- Tables for the kernel ---

  void PointKv(const StripRun& run, const float* base) {
    const int64_t first = run.lane * kv_strips_per_lane_ + run.first;
    for (int64_t i = 0; i < run.count; ++i) {
      const float* strip = base + run.at + i * sizes_.kv;
      buffers_.k[Index(first + i)] = strip;
      buffers_.v[Index(first + i)] = strip + sizes_.q;
    }
  }

  void PointQ(const StripRun& run, const float* base) {
    const int64_t first = run.lane * strips_per_lane_ + run.first;
    for (int64_t i = 0; i < run.count; ++i)
      buffers_.q[Index(first + i)] = base + run.at + i * sizes_.q;
  }

  StripRun RunOf(const GatheredBlock& block) const {
    const Range tokens = problem_.grid.QBlockTokens(block.block);
    const int64_t first = tokens.begin / kStripTokens;
    return {.lane = block.lane,
            .first = static_cast<int32_t>(first),
            .count = static_cast<int32_t>(CeilDiv(tokens.end, kStripTokens) - first),
            .at = block.at};
  }

  void FillInputTables(int32_t stage) {
    const RankStage& now = At(stage);
    const float* buffer = InputBuffer(stage);
    for (const Parcel& parcel : now.receives) {
      for (const StripRun& run : parcel.kv) PointKv(run, buffer + parcel.base);
      for (const StripRun& run : parcel.q) PointQ(run, buffer + parcel.base);
    }
    for (const StripRun& run : now.local_kv) PointKv(run, home_);
    for (const StripRun& run : now.local_q) PointQ(run, home_);
    for (const GatheredBlock& block : now.gather_kv.blocks) PointKv(RunOf(block), buffer);
    for (const GatheredBlock& block : now.gather_q.blocks) PointQ(RunOf(block), buffer);
    if (stage == 0) return;
    for (const Segment& segment : now.segments) {
      for (const StripRun& run : segment.runs) PointKv(run, buffer + segment.base);
    }
  }

  // Where the line has a token, counted from this rank's first.
  int64_t LineIndex(int64_t lane, int64_t token) const {
    return problem_.lanes.BatchOf(lane) * problem_.grid.q_tokens + token - line_.begin;
  }
  float* OutRow(int64_t lane, int64_t token) const {
    return call_.out +
           (LineIndex(lane, token) * problem_.lanes.heads + problem_.lanes.HeadOf(lane)) *
               head_dim_;
  }
  float* LseAt(int64_t lane, int64_t token) const {
    return lse_ + problem_.lanes.HeadOf(lane) * line_.size() + LineIndex(lane, token);
  }

  void PointOutput(const TokenRows& run, float* rows, float* lse, int64_t stride) {
    const int64_t first = run.lane * strips_per_lane_ + run.first / kStripTokens;
    for (int64_t i = 0; i * kStripTokens < run.count; ++i) {
      buffers_.out[Index(first + i)] = {
          .out = rows + i * kStripTokens * stride, .lse = lse + i * kStripTokens, .stride = stride};
    }
  }

  void FillOutputTable(int32_t stage) {
    const RankStage& now = At(stage);
    float* buffer = OutputBuffer(stage);
    for (const TokenRows& run : now.own_output) {
      PointOutput(run, OutRow(run.lane, run.first), LseAt(run.lane, run.first),
                  problem_.lanes.heads * head_dim_);
    }
    for (const OutParcel& parcel : now.returns) {
      float* rows = buffer + parcel.base;
      for (const TokenRows& run : parcel.tokens) {
        PointOutput(run, rows + run.row * head_dim_, rows + parcel.rows * head_dim_ + run.row,
                    head_dim_);
      }
    }
    for (const GatheredBlock& block : now.scatter_out.blocks) {
      const Range tokens = problem_.grid.QBlockTokens(block.block);
      PointOutput({.lane = block.lane,
                   .first = static_cast<int32_t>(tokens.begin),
                   .count = static_cast<int32_t>(tokens.size()),
                   .row = 0},
                  buffer + block.at, buffer + block.at + problem_.grid.block_tokens * head_dim_,
                  head_dim_);
    }
  }

  // --- Computing ---

  AttentionArgs ArgsOf(int32_t stage) const {
    AttentionArgs args;
    args.lanes = problem_.lanes;
    args.grid = problem_.grid;
    args.head_dim = head_dim_;
    args.scale = call_.scale;
    args.rows = &At(stage).rows;
    return args;
  }

  void ComputeFromStrips(int32_t stage) {
    AttentionArgs args = ArgsOf(stage);
    args.q = StripTable{buffers_.q, strips_per_lane_};
    args.k = StripTable{buffers_.k, kv_strips_per_lane_};
    args.v = StripTable{buffers_.v, kv_strips_per_lane_};
    args.out_strips = {
        .strips = buffers_.out, .strips_per_lane = strips_per_lane_, .merge = At(stage).merges};
    auto poll = [&] { Progress(); };
    args.poll = poll;
    Attention(args, pool_, buffers_.workspace);
  }

  // Nothing comes from elsewhere: the kernel packs what it needs when it needs it.
  void ComputeFromSources(int32_t stage) {
    AttentionArgs args = ArgsOf(stage);
    const int64_t heads = problem_.lanes.heads, tokens = problem_.grid.q_tokens;
    args.q = call_.q;
    args.k = call_.k;
    args.v = call_.v;
    args.q_order = args.kv_order = buffers_.orders->ByLane();
    args.out = View(call_.out - line_.begin * heads * head_dim_,
                    Shape{problem_.lanes.batch, tokens, heads, head_dim_});
    if (call_.lse != nullptr) args.lse = buffers_.lse.Get(problem_.lanes.Count() * tokens);
    auto poll = [&] { comm_.Poll(); };
    args.poll = poll;
    Attention(args, pool_, buffers_.workspace);
    if (call_.lse == nullptr) return;
    for (const AttentionRows::Row& row : At(stage).rows.rows) {
      const Range block = problem_.grid.QBlockTokens(row.q_block);
      const int32_t* order = buffers_.orders->Of(row.lane);
      for (int64_t p = block.begin; p < block.end; ++p) {
        const int64_t token = order != nullptr ? order[p] : p;
        call_.lse[problem_.lanes.HeadOf(row.lane) * line_.size() + LineIndex(row.lane, token)] =
            args.lse[row.lane * tokens + token];
      }
    }
  }

  // In slices, so that messages move as they would under the kernel's polls.
  void ElapseWork(const Work& work) {
    constexpr int kSlices = 16;
    const double seconds = options_.modelled_seconds(work);
    for (int slice = 0; slice < kSlices && seconds > 0; ++slice) {
      comm_.Elapse(seconds / kSlices);
      Progress();
    }
  }

  void Progress() {
    comm_.Poll();
    PostArrivals();
  }

  // --- Output to homes ---

  void Scatter(int32_t stage) {
    const RankStage& now = At(stage);
    if (now.scatter_out.blocks.empty()) return;
    std::vector<const OutParcel*> to(Index(it_.ranks), nullptr);
    for (const OutParcel& parcel : now.returns) to[Index(parcel.peer)] = &parcel;
    float* buffer = OutputBuffer(stage);
    Packing(stage, [&] {
      pool_.ParallelFor(std::ssize(now.scatter_out.blocks), [&](int64_t i, int) {
        const GatheredBlock& block = now.scatter_out.blocks[Index(i)];
        const int64_t begin = problem_.grid.QBlockTokens(block.block).begin;
        const float* rows = buffer + block.at;
        const float* lse = rows + problem_.grid.block_tokens * head_dim_;
        std::vector<int64_t> next_row;
        ForEachGatheredRow(
            {.itinerary = &it_,
             .gathered = &now.scatter_out,
             .index = i,
             .order = buffers_.orders->Of(block.lane)},
            next_row, [&](int64_t position, int64_t token, int32_t home, int64_t row) {
              const int64_t from = position - begin;
              float* out_row = nullptr;
              if (home == it_.rank) {
                out_row = OutRow(block.lane, token);
                *LseAt(block.lane, token) = lse[from];
              } else {
                float* parcel = buffer + to[Index(home)]->base;
                out_row = parcel + row * head_dim_;
                parcel[to[Index(home)]->rows * head_dim_ + row] = lse[from];
              }
              std::memcpy(out_row, rows + from * head_dim_, Index(head_dim_) * sizeof(float));
            });
      });
    });
  }

  void SendOutput(int32_t stage) {
    Letters& letters = letters_[Index(stage)];
    for (const OutParcel& parcel : At(stage).returns) {
      letters.returns.push_back(wire_.Send(OutputBuffer(stage) + parcel.base,
                                           parcel.Floats(head_dim_), parcel.rows, parcel.peer,
                                           TagOf(stage, kOutputTag)));
      stats_.bytes_sent += letters.returns.back().bytes;
    }
  }

  void AwaitReturns(int32_t stage) {
    AwaitSends(stage);
    for (Letter& letter : letters_[Index(stage)].returns) Done(letter, stage);
  }

  // Waits for a message that this rank has sent.
  void Done(Letter& letter, int32_t stage) {
    if (letter.done) return;
    wire_.Wait(letter);
    AddEvent(RunEvent::Kind::kSend, letter.posted, comm_.Now(), stage, letter.peer, letter.bytes);
  }

  // Output comes back into the memory from which queries were sent, as soon as they have left it.
  void PostArrivals() {
    for (; unsent_stage_ < it_.stages.size(); ++unsent_stage_) {
      Letters& letters = letters_[unsent_stage_];
      if (letters.sends.size() < it_.stages[unsent_stage_].sends.size()) return;
      bool all = true;
      for (size_t i = 0; i < letters.sends.size(); ++i) all &= TestSend(unsent_stage_, i);
      if (!all) return;
    }
  }

  bool TestSend(size_t stage, size_t i) {
    Letter& letter = letters_[stage].sends[i];
    if (letter.done) return true;
    if (!wire_.Test(letter)) return false;
    Sent(stage, i);
    return true;
  }

  void AwaitSends(int32_t stage) {
    Letters& letters = letters_[Index(stage)];
    for (size_t i = 0; i < letters.sends.size(); ++i) {
      if (letters.sends[i].done) continue;
      wire_.Wait(letters.sends[i]);
      Sent(Index(stage), i);
    }
  }

  void Sent(size_t stage, size_t i) {
    Letters& letters = letters_[stage];
    const Letter& sent = letters.sends[i];
    const int32_t now = static_cast<int32_t>(stage);
    AddEvent(RunEvent::Kind::kSend, sent.posted, comm_.Now(), now, sent.peer, sent.bytes);
    const Parcel& parcel = it_.stages[stage].sends[i];
    if (parcel.q_tokens == 0) return;
    letters.arrivals[i] =
        wire_.Receive(home_ + parcel.base + parcel.q_rows_at, parcel.q_tokens * (head_dim_ + 1),
                      parcel.q_tokens, parcel.peer, TagOf(OutputStage(now), kOutputTag));
    stats_.bytes_received += letters.arrivals[i].bytes;
  }

  void TakeArrivals(int32_t stage) {
    const RankStage& now = At(stage);
    if (std::exchange(letters_[Index(stage)].taken, true)) return;
    Letters& letters = letters_[Index(now.q_stage)];
    RunWait wait{.what = RunWait::For::kOutput,
                 .stage = stage,
                 .begin = comm_.Now(),
                 .end = 0,
                 .missing = {}};
    for (size_t i = 0; i < now.arrivals.size(); ++i) {
      Letter& letter = letters.arrivals[Index(now.arrival_parcel[i])];
      if (!wire_.Test(letter)) wait.missing.push_back(letter.peer);
    }
    for (size_t i = 0; i < now.arrivals.size(); ++i) {
      Letter& letter = letters.arrivals[Index(now.arrival_parcel[i])];
      const double begin = comm_.Now();
      wire_.Wait(letter);
      wait.end = comm_.Now();
      stats_.wait_seconds += wait.end - begin;
      AddEvent(RunEvent::Kind::kWait, begin, wait.end, stage);
      AddEvent(RunEvent::Kind::kReceive, letter.posted, wait.end, stage, letter.peer, letter.bytes);
      Packing(stage, [&] { Unpack(now.arrivals[i], letter.to); });
    }
    if (!wait.missing.empty()) record_.waits.push_back(std::move(wait));
  }

  void Unpack(const OutParcel& parcel, const float* rows) {
    const float* lse = rows + parcel.rows * head_dim_;
    auto take = [&](int64_t lane, int64_t token, int64_t row) {
      std::memcpy(OutRow(lane, token), rows + row * head_dim_, Index(head_dim_) * sizeof(float));
      *LseAt(lane, token) = lse[row];
    };
    pool_.ParallelFor(std::ssize(parcel.tokens), [&](int64_t i, int) {
      const TokenRows& run = parcel.tokens[Index(i)];
      for (int64_t t = 0; t < run.count; ++t) take(run.lane, run.first + t, run.row + t);
    });
    pool_.ParallelFor(std::ssize(parcel.blocks), [&](int64_t i, int) {
      const BlockRows& block = parcel.blocks[Index(i)];
      ForEachHomeRow(HomeRows(block.lane), block,
                     [&](int64_t token, int64_t row) { take(block.lane, token, row); });
    });
  }

  Communicator& comm_;
  ThreadPool& pool_;
  const ExecutorOptions& options_;
  Wire& wire_;
  Buffers& buffers_;
  RunRecord& record_;
  const Itinerary& it_;
  const LayerCall& call_;
  const Problem& problem_;
  const StripSizes& sizes_;
  const int64_t head_dim_;
  const Range line_;  // this rank's part of the (batch, token) line
  const int64_t strips_per_lane_, kv_strips_per_lane_;
  float* home_ = nullptr;
  std::array<float*, 3> input_{};
  std::array<float*, 2> output_{};
  float* lse_ = nullptr;
  std::vector<Letters> letters_;  // [stages]
  size_t unsent_stage_ = 0;       // stages before it have all their sends done
  int64_t held_ = 0, leaving_ = 0;
  RunStats stats_;
};

Executor::Executor(Communicator& comm, ThreadPool& pool, ExecutorOptions options)
    : comm_(comm),
      pool_(pool),
      options_(std::move(options)),
      wire_(comm, options_.wire),
      buffers_(std::make_unique<Buffers>()) {}

Executor::~Executor() = default;

std::shared_ptr<const Itinerary> Executor::Prepare(const Plan& plan, const BlockMask& mask,
                                                   int64_t head_dim) {
  if (plan.ranks() != comm_.size()) {
    throw InputError("[exec] a plan for {} ranks on {}; plan for as many as there are",
                     plan.ranks(), comm_.size());
  }
  const RunIdentity identity{.mask = HashMask(mask), .plan = plan.hash(), .head_dim = head_dim};
  CheckAgreement(comm_, identity);
  const auto known = std::find_if(known_.begin(), known_.end(),
                                  [&](const Known& k) { return k.identity == identity; });
  if (known != known_.end()) {
    std::rotate(known_.begin(), known, known + 1);
    return known_.front().itinerary;
  }
  if (homes_ == nullptr || !(homes_problem_ == plan.problem())) {
    homes_ = std::make_shared<const HomeMap>(plan.problem());
    homes_problem_ = plan.problem();
  }
  if (known_.size() == kKnown) known_.pop_back();
  known_.insert(known_.begin(),
                {identity, std::make_shared<const Itinerary>(MakeItinerary(
                               Lower(plan, mask), homes_, mask, comm_.rank(), head_dim))});
  return known_.front().itinerary;
}

RunStats Executor::Run(const Itinerary& itinerary, const LayerCall& call) {
  EQ_CHECK(itinerary.rank == comm_.rank() && itinerary.ranks == comm_.size(),
           "rank {} of {} runs the part of rank {} of {}", comm_.rank(), comm_.size(),
           itinerary.rank, itinerary.ranks);
  Walker walker(*this, itinerary, call);
  AbortOnError(comm_, [&] { Walk(itinerary.program, walker); });  // the walker holds letters
  return walker.stats();
}

RunStats Executor::Run(const Plan& plan, const BlockMask& mask, int64_t head_dim,
                       const LayerCall& call) {
  return Run(*Prepare(plan, mask, head_dim), call);
}

const RunRecord& Executor::LastRun() const { return buffers_->record; }

Range HomeLine(const HomeMap& homes, const Problem& problem, int32_t rank) {
  Range line{0, 0};
  bool any = false;
  for (int64_t item = 0; item < problem.lanes.batch; ++item) {
    const Range tokens = homes.RankTokens(Side::kQuery, rank, item);
    if (tokens.empty()) continue;
    const int64_t begin = item * problem.grid.q_tokens;
    if (!any) line.begin = begin + tokens.begin;
    line.end = begin + tokens.end;
    any = true;
  }
  return line;
}

ConstView HomeView(const float* rows, Range home_line, const Problem& problem, int64_t head_dim,
                   int64_t token_stride, int64_t head_stride) {
  const int64_t tokens = problem.grid.q_tokens;
  return ConstView(rows - home_line.begin * token_stride, DType::kF32,
                   Shape{problem.lanes.batch, tokens, problem.lanes.heads, head_dim},
                   Strides{tokens * token_stride, token_stride, head_stride, 1});
}

}  // namespace equitile
