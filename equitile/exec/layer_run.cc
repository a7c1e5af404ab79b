#include "equitile/exec/layer_run.h"

#include <algorithm>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

enum Tag : int32_t { kInputTag, kPassTag, kOutputTag, kTags };

int32_t TagOf(int32_t stage, Tag tag) { return stage * kTags + tag; }

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

LayerRun::LayerRun(Executor& executor, ExecutorBuffers& buffers, const Itinerary& itinerary,
                   const LayerCall& call)
    : comm_(executor.comm()),
      pool_(executor.pool()),
      options_(executor.options()),
      wire_(executor.wire()),
      buffers_(buffers),
      record_(buffers.record),
      it_(itinerary),
      call_(call),
      problem_(itinerary.program.problem),
      sizes_(itinerary.sizes),
      head_dim_(itinerary.sizes.head_dim),
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

void LayerRun::HomeSends(int32_t stage) {
  SetPlace(stage);
  if (stage == 0) ExchangeTails();
  // Others may have packed before: what they send can arrive while this rank still packs.
  if (stage == 0 && options_.overlap) PostInputs(0);
  PackHome(stage);
  if (options_.overlap) SendInputs(stage);
  comm_.Poll();
}

void LayerRun::Receive(int32_t stage) {
  Hold(At(stage).q_tokens * QBytes() + At(stage).kv_tokens * 2 * QBytes());
  if (options_.overlap && stage > 0) PostInputs(stage);
}

void LayerRun::Await(int32_t stage) {
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

void LayerRun::Compute(int32_t stage) {
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
  CollectMasses(stage);
  const double end = comm_.Now();
  stats_.compute_seconds += end - begin;
  AddEvent(RunEvent::Kind::kCompute, begin, end, stage);
}

void LayerRun::Return(int32_t stage) {
  RankStage const& now = At(stage);
  const bool leaves = !it_.is_local && OutputStage(stage) == stage;
  // A ring's own chunk lies between its queries, and stays with them.
  const bool stays = it_.is_ring && stage == 0;
  if (!stays) held_ -= now.kv_tokens * 2 * QBytes();
  held_ -= std::exchange(leaving_, 0);
  if (leaves) {
    Scatter(stage);
    SendOutput(stage);
  }
  if (OutputStage(stage) == stage) {
    const int64_t tokens = At(now.q_stage).q_tokens;
    held_ -= tokens * QBytes();
    if (it_.is_ring && stage > 0) held_ -= At(0).kv_tokens * 2 * QBytes();
    leaving_ = tokens * OBytes();
  }
  record_.returned[Index(stage)] = comm_.Now();
  if (!options_.overlap && leaves) {
    AwaitSends(stage);
    TakeArrivals(stage);
    for (Letter& letter : letters_[Index(stage)].returns) wire_.Wait(letter);
  }
}

void LayerRun::Finish() {
  const int32_t stages = static_cast<int32_t>(it_.stages.size());
  for (int32_t stage = 0; stage < stages; ++stage) AwaitSends(stage);
  for (int32_t stage = 0; stage < stages; ++stage) TakeArrivals(stage);
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (Letter& letter : letters_[Index(stage)].passes_out) Done(letter, stage);
    for (Letter& letter : letters_[Index(stage)].returns) Done(letter, stage);
  }
  if (Integers() && !options_.modelled_seconds) RoundOutput();
  record_.end = comm_.Now();
  stats_.seconds = record_.end - record_.begin;
  stats_.allocated_bytes = buffers_.Bytes();
}

void LayerRun::Allocate() {
  const int64_t lanes = problem_.lanes.Count();
  if (it_.is_local) return;
  home_ = buffers_.home.Get<std::byte>(it_.home_bytes);
  std::array<int64_t, 3> in = {0, 0, 0};
  std::array<int64_t, 2> out = {0, 0};
  for (size_t stage = 0; stage < it_.stages.size(); ++stage) {
    int64_t& input = in[it_.is_ring && stage == 0 ? 2 : stage % 2];
    input = std::max(input, it_.stages[stage].input_bytes);
    out[stage % 2] = std::max(out[stage % 2], it_.stages[stage].output_bytes);
  }
  for (size_t i = 0; i < in.size(); ++i) input_[i] = buffers_.inputs[i].Get<std::byte>(in[i]);
  for (size_t i = 0; i < out.size(); ++i) output_[i] = buffers_.outputs[i].Get<std::byte>(out[i]);
  lse_ = call_.lse != nullptr
             ? call_.lse
             : buffers_.lse.Get<float>(problem_.lanes.heads * it_.home_rows.Count());
  buffers_.q.resize(Index(lanes * strips_per_lane_));
  buffers_.out.resize(Index(lanes * strips_per_lane_));
  buffers_.k.resize(Index(lanes * kv_strips_per_lane_));
  buffers_.v.resize(Index(lanes * kv_strips_per_lane_));
}

void LayerRun::AddEvent(RunEvent::Kind kind, double begin, double end, int32_t stage, int32_t peer,
                        int64_t bytes) {
  record_.events.push_back({kind, begin, end, stage, it_.is_ring ? -1 : stage, peer, bytes});
}

void LayerRun::SendInputs(int32_t stage) {
  Letters& letters = letters_[Index(stage)];
  for (const Parcel& parcel : At(stage).sends) {
    letters.sends.push_back(wire_.Send(home_ + parcel.base, InputBytes(parcel.bytes), parcel.peer,
                                       TagOf(stage, kInputTag)));
    stats_.bytes_sent += letters.sends.back().bytes;
    letters.arrivals.emplace_back();
  }
  record_.inputs_sent[Index(stage)] = comm_.Now();
}

void LayerRun::PostInputs(int32_t stage) {
  const RankStage& now = At(stage);
  Letters& letters = letters_[Index(stage)];
  std::byte* buffer = InputBuffer(stage);
  // What was passed on from this buffer must have left it.
  if (it_.is_ring && stage >= 2) {
    for (Letter& letter : letters_[Index(stage - 1)].passes_out) Done(letter, stage - 1);
  }
  for (const Parcel& parcel : now.receives) {
    letters.inputs.push_back(wire_.Receive(buffer + parcel.base, InputBytes(parcel.bytes),
                                           parcel.peer, TagOf(stage, kInputTag)));
    stats_.bytes_received += letters.inputs.back().bytes;
  }
  for (const Segment& segment : now.segments) {
    if (stage == 0) break;
    letters.passes_in.push_back(wire_.Receive(buffer + segment.base, InputBytes(segment.bytes),
                                              now.pass_from, TagOf(stage, kPassTag)));
    stats_.bytes_received += letters.passes_in.back().bytes;
  }
  for (const Segment& segment : now.passed_on) {
    letters.passes_out.push_back(wire_.Send(SegmentAt(stage - 1, segment.source),
                                            InputBytes(segment.bytes), now.pass_to,
                                            TagOf(stage, kPassTag)));
    stats_.bytes_sent += letters.passes_out.back().bytes;
  }
  record_.passed[Index(stage)] = comm_.Now();
}

const std::byte* LayerRun::SegmentAt(int32_t stage, int32_t source) {
  for (const Segment& segment : At(stage).segments) {
    if (segment.source != source) continue;
    const bool at_home = stage == 0 && source == it_.rank;
    return (at_home ? home_ : InputBuffer(stage)) + segment.base;
  }
  EQ_CHECK(false, "stage {}: nothing of home {} to pass on", stage, source);
}

void LayerRun::WaitForAll(std::vector<Letter>& letters, RunWait::For what, int32_t stage) {
  if (letters.empty()) return;
  const double begin = comm_.Now();
  for (Letter& letter : letters) WaitFor(letter, what, stage);
  AddEvent(RunEvent::Kind::kWait, begin, comm_.Now(), stage);
}

void LayerRun::WaitFor(Letter& letter, RunWait::For what, int32_t stage) {
  const double begin = comm_.Now();
  const bool was_there = wire_.Test(letter);
  wire_.Wait(letter);
  const double end = comm_.Now();
  stats_.wait_seconds += end - begin;
  AddEvent(RunEvent::Kind::kReceive, letter.posted, end, stage, letter.peer, letter.bytes);
  if (!was_there)
    record_.waits.push_back(
        {.what = what, .stage = stage, .begin = begin, .end = end, .peer = letter.peer});
}

AttentionArgs LayerRun::ArgsOf(int32_t stage) {
  AttentionArgs args;
  args.lanes = problem_.lanes;
  args.grid = problem_.grid;
  args.head_dim = head_dim_;
  args.scale = call_.scale;
  args.rows = &At(stage).rows;
  args.compute = sizes_.compute;
  if (!it_.masks.tails().empty() && !At(stage).merges) {
    args.tails = {.lanes = it_.masks.tails(), .means = buffers_.tails.means()};
    if (it_.is_ring) args.tails.kept = &it_.masks.blocks();
  }
  if (call_.masses != nullptr) {
    EQ_CHECK(!it_.is_ring, "masses of rows that are computed in parts");
    EQ_CHECK(!Integers(), "masses of attention in {}", ComputeName(sizes_.compute));
    buffers_.masses.resize(At(stage).rows.kv_blocks.size());
    args.masses = buffers_.masses.data();
  }
  return args;
}

void LayerRun::ExchangeTails() {
  if (it_.masks.tails().empty() || options_.modelled_seconds) return;
  const double begin = comm_.Now();
  buffers_.tails.Run({.routes = &it_.tails,
                      .problem = &problem_,
                      .homes = it_.homes.get(),
                      .head_dim = head_dim_,
                      .k = call_.k,
                      .v = call_.v,
                      .orders = buffers_.orders->ByLane()},
                     comm_, pool_);
  stats_.bytes_sent += buffers_.tails.bytes_sent();
  stats_.bytes_received += buffers_.tails.bytes_received();
  const double end = comm_.Now();
  stats_.pack_seconds += end - begin;
  AddEvent(RunEvent::Kind::kPack, begin, end, 0);
}

void LayerRun::CollectMasses(int32_t stage) {
  if (call_.masses == nullptr) return;
  const AttentionRows& rows = At(stage).rows;
  for (int64_t i = 0; i < rows.Count(); ++i) {
    const auto first = buffers_.masses.begin() + rows.first[Index(i)];
    const AttentionRows::Row& row = rows.rows[Index(i)];
    call_.masses->push_back({.lane = row.lane,
                             .q_block = row.q_block,
                             .masses = {first, first + std::ssize(rows.KvBlocks(i))}});
  }
}

void LayerRun::ComputeFromStrips(int32_t stage) {
  AttentionArgs args = ArgsOf(stage);
  args.q = StripTable{buffers_.q, strips_per_lane_, sizes_.compute};
  args.k = StripTable{buffers_.k, kv_strips_per_lane_, sizes_.compute};
  args.v = StripTable{buffers_.v, kv_strips_per_lane_, sizes_.compute};
  args.out_strips = {
      .strips = buffers_.out, .strips_per_lane = strips_per_lane_, .merge = At(stage).merges};
  auto poll = [&] { Progress(); };
  args.poll = poll;
  Attention(args, pool_, buffers_.workspace);
}

void LayerRun::ComputeFromSources(int32_t stage) {
  AttentionArgs args = ArgsOf(stage);
  const int64_t tokens = problem_.grid.q_tokens;
  args.q = call_.q;
  args.k = call_.k;
  args.v = call_.v;
  args.q_order = args.kv_order = buffers_.orders->ByLane();
  args.out = it_.home_rows.Output(call_.out, head_dim_);
  if (call_.lse != nullptr) args.lse = buffers_.lse.Get<float>(problem_.lanes.Count() * tokens);
  auto poll = [&] { comm_.Poll(); };
  args.poll = poll;
  Attention(args, pool_, buffers_.workspace);
  if (call_.lse == nullptr) return;
  for (const AttentionRows::Row& row : At(stage).rows.rows) {
    const Range block = problem_.grid.QBlockTokens(row.q_block);
    const int32_t* order = buffers_.orders->Of(row.lane);
    for (int64_t p = block.begin; p < block.end; ++p) {
      const int64_t token = order != nullptr ? order[p] : p;
      *LseAt(call_.lse, row.lane, token) = args.lse[row.lane * tokens + token];
    }
  }
}

void LayerRun::ElapseWork(const Work& work) {
  constexpr int kSlices = 16;
  const double seconds = options_.modelled_seconds(work);
  for (int slice = 0; slice < kSlices && seconds > 0; ++slice) {
    comm_.Elapse(seconds / kSlices);
    Progress();
  }
}

void LayerRun::Progress() {
  comm_.Poll();
  PostArrivals();
}

void LayerRun::SendOutput(int32_t stage) {
  Letters& letters = letters_[Index(stage)];
  for (const OutParcel& parcel : At(stage).returns) {
    letters.returns.push_back(wire_.Send(OutputBuffer(stage) + parcel.base,
                                         OutputBytes(parcel.rows), parcel.peer,
                                         TagOf(stage, kOutputTag)));
    stats_.bytes_sent += letters.returns.back().bytes;
  }
}

void LayerRun::AwaitReturns(int32_t stage) {
  AwaitSends(stage);
  for (Letter& letter : letters_[Index(stage)].returns) Done(letter, stage);
}

void LayerRun::Done(Letter& letter, int32_t stage) {
  if (letter.done) return;
  wire_.Wait(letter);
  AddEvent(RunEvent::Kind::kSend, letter.posted, comm_.Now(), stage, letter.peer, letter.bytes);
}

void LayerRun::PostArrivals() {
  for (; unsent_stage_ < it_.stages.size(); ++unsent_stage_) {
    Letters& letters = letters_[unsent_stage_];
    if (letters.sends.size() < it_.stages[unsent_stage_].sends.size()) return;
    bool all = true;
    for (size_t i = 0; i < letters.sends.size(); ++i) all &= TestSend(unsent_stage_, i);
    if (!all) return;
  }
}

bool LayerRun::TestSend(size_t stage, size_t i) {
  Letter& letter = letters_[stage].sends[i];
  if (letter.done) return true;
  if (!wire_.Test(letter)) return false;
  Sent(stage, i);
  return true;
}

void LayerRun::AwaitSends(int32_t stage) {
  Letters& letters = letters_[Index(stage)];
  for (size_t i = 0; i < letters.sends.size(); ++i) {
    if (letters.sends[i].done) continue;
    wire_.Wait(letters.sends[i]);
    Sent(Index(stage), i);
  }
}

void LayerRun::Sent(size_t stage, size_t i) {
  Letters& letters = letters_[stage];
  const Letter& sent = letters.sends[i];
  const int32_t now = static_cast<int32_t>(stage);
  AddEvent(RunEvent::Kind::kSend, sent.posted, comm_.Now(), now, sent.peer, sent.bytes);
  const Parcel& parcel = it_.stages[stage].sends[i];
  if (parcel.q_tokens == 0) return;
  letters.arrivals[i] =
      wire_.Receive(home_ + parcel.base + parcel.q_rows_at, OutputBytes(parcel.q_tokens),
                    parcel.peer, TagOf(OutputStage(now), kOutputTag));
  stats_.bytes_received += letters.arrivals[i].bytes;
}

void LayerRun::RoundOutput() {
  constexpr int64_t kRowsAtOnce = 512;
  const int64_t rows = it_.home_rows.Count() * problem_.lanes.heads;
  pool_.ParallelFor(CeilDiv(rows, kRowsAtOnce), [&](int64_t part, int) {
    const int64_t first = part * kRowsAtOnce;
    RoundToShort(call_.out + first * head_dim_, std::min(kRowsAtOnce, rows - first), head_dim_,
                 head_dim_);
  });
}

void LayerRun::TakeArrivals(int32_t stage) {
  const RankStage& now = At(stage);
  if (std::exchange(letters_[Index(stage)].taken, true)) return;
  Letters& letters = letters_[Index(now.q_stage)];
  for (size_t i = 0; i < now.arrivals.size(); ++i) {
    Letter& letter = letters.arrivals[Index(now.arrival_parcel[i])];
    const double begin = comm_.Now();
    WaitFor(letter, RunWait::For::kOutput, stage);
    AddEvent(RunEvent::Kind::kWait, begin, comm_.Now(), stage);
    Packing(stage, now.arrivals[i].Bytes(sizes_), [&] { Unpack(now.arrivals[i], letter.to); });
  }
}

}  // namespace equitile
