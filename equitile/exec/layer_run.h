// One run of one rank's part of a plan: the visitor of Walk that moves, computes and returns.
// Internal to the room; callers use executor.h.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "equitile/base/growing_buffer.h"
#include "equitile/exec/executor.h"
#include "equitile/exec/token_rows.h"
#include "equitile/kernel/rows/short_rows.h"

namespace equitile {

// What all runs of an executor share.
struct ExecutorBuffers {
  GrowingBuffer home;
  // Inputs of a stage: two that take turns, and one for the first stage of a ring, whose queries
  // stay.
  std::array<GrowingBuffer, 3> inputs;
  std::array<GrowingBuffer, 2> outputs;
  GrowingBuffer lse;
  std::vector<const std::byte*> q, k, v;  // [lanes][strips]
  std::vector<OutputStrip> out;           // [lanes][strips]
  Workspace workspace;
  TailExchange tails;
  std::vector<float> masses;  // of the rows of one stage
  RunRecord record;
  std::optional<LaneOrders> orders;
  Problem orders_problem;

  int64_t Bytes() const {
    int64_t bytes = home.Bytes() + lse.Bytes() + workspace.Bytes() + tails.Bytes();
    for (const auto& buffer : inputs) bytes += buffer.Bytes();
    for (const auto& buffer : outputs) bytes += buffer.Bytes();
    return bytes;
  }
};

// The visitor of Walk that does the work.
class LayerRun {
 public:
  LayerRun(Executor& executor, ExecutorBuffers& buffers, const Itinerary& itinerary,
           const LayerCall& call);

  // --- Steps of Walk ---

  void HomeSends(int32_t stage);
  void Receive(int32_t stage);
  void Await(int32_t stage);
  void Compute(int32_t stage);
  void Return(int32_t stage);
  void Finish();

  const RunStats& stats() const { return stats_; }

 private:
  // All messages of one stage.
  struct Letters {
    std::vector<Letter> sends, inputs, passes_in, passes_out, returns;
    std::vector<Letter> arrivals;  // [sends] of its output stage; not posted until the send is done
    bool taken = false;            // output for this home is in its place
  };

  const RankStage& At(int32_t stage) const { return it_.stages[static_cast<size_t>(stage)]; }
  bool Integers() const { return sizes_.compute != Compute::kF32; }
  int64_t QBytes() const {
    return Integers() ? sizes_.q / kStripTokens : head_dim_ * DTypeBytes(options_.wire);
  }
  int64_t OBytes() const {
    return (Integers() ? ShortRowBytes(head_dim_) : head_dim_ * DTypeBytes(options_.wire)) +
           sizes_.lse;
  }
  TokenRounding RoundingOf(StripLayout layout) const {
    return {.layout = layout, .compute = sizes_.compute, .head_dim = head_dim_};
  }
  // The stage after which the output of rows of `stage` goes home.
  int32_t OutputStage(int32_t stage) const {
    return it_.is_ring ? static_cast<int32_t>(it_.stages.size()) - 1 : stage;
  }
  std::byte* InputBuffer(int32_t stage) {
    return input_[static_cast<size_t>(it_.is_ring && stage == 0 ? 2 : stage % 2)];
  }
  std::byte* OutputBuffer(int32_t stage) { return output_[static_cast<size_t>(stage % 2)]; }

  // Numbers that the wire may round, or tokens that are rounded already.
  MessageBytes InputBytes(int64_t bytes) const {
    return Integers() ? MessageBytes{.exact = bytes} : MessageBytes{.numbers = bytes};
  }
  MessageBytes OutputBytes(int64_t rows) const {
    return {.numbers = rows * sizes_.out,
            .exact = rows * sizes_.lse,
            .short_row = Integers() ? head_dim_ : 0};
  }

  void Allocate();
  void SetPlace(int32_t stage) { comm_.SetPlace(call_.step, call_.layer, stage); }

  void Hold(int64_t bytes) {
    held_ += bytes;
    stats_.buffer_bytes = std::max(stats_.buffer_bytes, held_);
  }

  void AddEvent(RunEvent::Kind kind, double begin, double end, int32_t stage, int32_t peer = -1,
                int64_t bytes = 0);

  // `bytes` are what goes through it.
  template <typename Work>
  void Packing(int32_t stage, int64_t bytes, const Work& work) {
    const double begin = comm_.Now();
    if (options_.modelled_seconds) {
      comm_.Elapse(options_.modelled_pack_seconds_per_byte * static_cast<double>(bytes));
    } else {
      work();
    }
    const double end = comm_.Now();
    stats_.pack_seconds += end - begin;
    AddEvent(RunEvent::Kind::kPack, begin, end, stage);
  }

  // Output of `rows` tokens that lies in a buffer: [rows][head_dim], then log-sum-exp [rows].
  struct OutputRows {
    float* out = nullptr;
    float* lse = nullptr;
  };
  OutputRows RowsAt(std::byte* data, int64_t rows) const;

  // --- Home to wire ---

  void PackHome(int32_t stage);
  void Pack(const PackJob& job);
  void WriteRows(const TokenSource& source, StripLayout layout, const TokenRows& scattered,
                 std::byte* rows);
  void SendInputs(int32_t stage);

  // --- Wire to kernel ---

  void PostInputs(int32_t stage);
  const std::byte* SegmentAt(int32_t stage, int32_t source);
  void WaitFor(Letter& letter, RunWait::For what, int32_t stage);
  void WaitForAll(std::vector<Letter>& letters, RunWait::For what, int32_t stage);

  // Packs strips whose tokens lie on several homes.
  void Gather(int32_t stage);

  // --- Tables for the kernel ---

  void PointKv(const StripRun& run, const std::byte* base);
  void PointQ(const StripRun& run, const std::byte* base);

  void FillInputTables(int32_t stage);

  Range HomeOf(int64_t lane) const { return it_.home_rows.TokensOf(problem_.lanes.BatchOf(lane)); }
  int64_t RowOf(int64_t lane, int64_t token) const {
    return it_.home_rows.RowOf(problem_.lanes.BatchOf(lane), token);
  }
  float* OutRow(int64_t lane, int64_t token) const {
    return call_.out +
           (RowOf(lane, token) * problem_.lanes.heads + problem_.lanes.HeadOf(lane)) * head_dim_;
  }
  float* LseAt(float* lse, int64_t lane, int64_t token) const {
    return lse + problem_.lanes.HeadOf(lane) * it_.home_rows.Count() + RowOf(lane, token);
  }

  void PointOutput(const TokenRows& run, float* rows, float* lse, int64_t stride);
  void FillOutputTable(int32_t stage);

  // --- Computing ---

  AttentionArgs ArgsOf(int32_t stage);

  // Means of skipped blocks, before anything else.
  void ExchangeTails();
  // What the kernel has said about the rows of a stage.
  void CollectMasses(int32_t stage);

  void ComputeFromStrips(int32_t stage);

  // Nothing comes from elsewhere: the kernel packs what it needs when it needs it.
  void ComputeFromSources(int32_t stage);

  // In slices, so that messages move as they would under the kernel's polls.
  void ElapseWork(const Work& work);
  void Progress();

  // --- Output to homes ---

  void Scatter(int32_t stage);
  void SendOutput(int32_t stage);
  void AwaitReturns(int32_t stage);

  // Waits for a message that this rank has sent.
  void Done(Letter& letter, int32_t stage);

  // Output comes back into the memory from which queries were sent, as soon as they have left it.
  void PostArrivals();
  bool TestSend(size_t stage, size_t i);
  void AwaitSends(int32_t stage);
  void Sent(size_t stage, size_t i);
  void TakeArrivals(int32_t stage);
  void Unpack(const OutParcel& parcel, std::byte* data);
  // Output that never left its home, as if it had: bits must not depend on who computed a row.
  void RoundOutput();

  Communicator& comm_;
  ThreadPool& pool_;
  const ExecutorOptions& options_;
  Wire& wire_;
  ExecutorBuffers& buffers_;
  RunRecord& record_;
  const Itinerary& it_;
  const LayerCall& call_;
  const Problem& problem_;
  const StripSizes& sizes_;
  const int64_t head_dim_;
  const int64_t strips_per_lane_, kv_strips_per_lane_;
  std::byte* home_ = nullptr;
  std::array<std::byte*, 3> input_{};
  std::array<std::byte*, 2> output_{};
  float* lse_ = nullptr;
  std::vector<Letters> letters_;  // [stages]
  size_t unsent_stage_ = 0;       // stages before it have all their sends done
  int64_t held_ = 0, leaving_ = 0;
  RunStats stats_;
};

}  // namespace equitile
