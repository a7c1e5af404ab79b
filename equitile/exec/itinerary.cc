#include "equitile/exec/itinerary.h"

#include <algorithm>
#include <bit>
#include <map>

#include "equitile/base/error.h"
#include "equitile/plan/walker.h"

namespace equitile {
namespace {

// Buffers are cut on cache lines.
constexpr int64_t kLineFloats = static_cast<int64_t>(kBufferAlignment / sizeof(float));
// Strips per job: a few dozen kilobytes, so that threads share even one lane.
constexpr int32_t kJobStrips = 8;

template <typename P>
P& FindOrAdd(std::vector<P>& list, int32_t peer) {
  for (P& entry : list) {
    if (entry.peer == peer) return entry;
  }
  list.emplace_back();
  list.back().peer = peer;
  return list.back();
}

Range StripsOf(Range tokens) {
  return {tokens.begin / kStripTokens, CeilDiv(tokens.end, kStripTokens)};
}

void AddStrips(std::vector<StripRun>& runs, int64_t lane, Range strips) {
  if (!runs.empty() && runs.back().lane == lane &&
      runs.back().first + runs.back().count == strips.begin) {
    runs.back().count += static_cast<int32_t>(strips.size());
  } else {
    runs.push_back({.lane = static_cast<int32_t>(lane),
                    .first = static_cast<int32_t>(strips.begin),
                    .count = static_cast<int32_t>(strips.size())});
  }
}

class Maker {
 public:
  Maker(Program program, std::shared_ptr<const HomeMap> homes, const BlockMask& mask, int32_t rank,
        int64_t head_dim)
      : mask_(mask), homes_(*homes) {
    out_.rank = rank;
    out_.ranks = program.problem.ranks;
    out_.sizes = StripSizes(head_dim);
    out_.homes = std::move(homes);
    out_.program = std::move(program);
    out_.stages.resize(out_.program.stages.size());
    for (const Task& task : out_.program.tasks) out_.is_ring |= task.kv_set != 0;
  }

  Itinerary Make() {
    for (int32_t stage = 0; stage < Stages(); ++stage) AddInputs(stage);
    for (int32_t stage = 0; stage < Stages(); ++stage) AddTasks(stage);
    for (int32_t stage = 0; stage < Stages(); ++stage) AddReturns(stage);
    PlaceHomeBuffer();
    for (int32_t stage = 0; stage < Stages(); ++stage) PlaceInputs(stage);
    for (int32_t stage = 0; stage < Stages(); ++stage) PlaceOutputs(stage);
    for (const RankStage& stage : out_.stages) {
      out_.is_local &= stage.sends.empty() && stage.receives.empty() && stage.returns.empty() &&
                       stage.arrivals.empty() && stage.pass_from < 0 && stage.pass_to < 0;
    }
    return std::move(out_);
  }

 private:
  int32_t Stages() const { return static_cast<int32_t>(out_.stages.size()); }
  RankStage& At(int32_t stage) { return out_.stages[static_cast<size_t>(stage)]; }
  const Problem& problem() const { return out_.program.problem; }
  bool InHomeOrder(int64_t lane) const { return problem().OrderOf(lane) == TokenOrder::kFHW; }

  Range TokensOf(Side side, const LaneBlocks& item) const {
    const int64_t block = problem().grid.block_tokens, tokens = homes_.Tokens(side);
    return {std::min(item.begin * block, tokens), std::min(item.end * block, tokens)};
  }

  // Visits the parts of blocks of a lane in home order that lie on one home or, for home < 0, on
  // each: (home, tokens).
  template <typename Visit>
  void ForEachHome(Side side, const LaneBlocks& item, int32_t only, Visit&& visit) const {
    const Range tokens = TokensOf(side, item);
    if (tokens.empty()) return;
    const int64_t batch_item = problem().lanes.BatchOf(item.lane);
    const int32_t first = only >= 0 ? only : homes_.RankOf(side, batch_item, tokens.begin);
    const int32_t last = only >= 0 ? only : homes_.RankOf(side, batch_item, tokens.end - 1);
    for (int32_t home = first; home <= last; ++home) {
      const Range own = homes_.RankTokens(side, home, batch_item);
      const Range part{std::max(own.begin, tokens.begin), std::min(own.end, tokens.end)};
      if (!part.empty()) visit(home, part);
    }
  }

  // --- Inputs: as a home, and as the one who computes ---

  void AddInputs(int32_t stage) {
    const auto transfers =
        out_.program.TransfersOf(out_.program.stages[static_cast<size_t>(stage)].inputs);
    for (const Transfer& transfer : transfers) {
      if (transfer.from != kHome) {
        AddPass(transfer, stage);
        continue;
      }
      for (const LaneBlocks& item : out_.program.BlocksOf(transfer.blocks)) {
        if (transfer.to == out_.rank) {
          ReceiveFromHomes(transfer.cargo, item, At(stage));
        } else {
          SendFromHome(transfer, item, At(stage));
        }
      }
    }
  }

  void SendFromHome(const Transfer& transfer, const LaneBlocks& item, RankStage& stage) {
    const bool is_q = transfer.cargo == Cargo::kQ;
    const Side side = is_q ? Side::kQuery : Side::kKey;
    if (InHomeOrder(item.lane)) {
      ForEachHome(side, item, out_.rank, [&](int32_t, Range tokens) {
        AddHomeOrder(FindOrAdd(stage.sends, transfer.to), is_q, item.lane, tokens);
      });
      return;
    }
    for (int32_t block = item.begin; block < item.end; ++block) {
      const int64_t count = homes_.LocalTokens(side, item.lane, {block, block + 1}, out_.rank);
      if (count > 0)
        AddScattered(FindOrAdd(stage.sends, transfer.to), is_q, item.lane, block, count);
    }
  }

  void ReceiveFromHomes(Cargo cargo, const LaneBlocks& item, RankStage& stage) {
    const bool is_q = cargo == Cargo::kQ;
    const Side side = is_q ? Side::kQuery : Side::kKey;
    (is_q ? stage.q_tokens : stage.kv_tokens) += TokensOf(side, item).size();
    if (InHomeOrder(item.lane)) {
      ForEachHome(side, item, -1, [&](int32_t home, Range tokens) {
        if (home == out_.rank) {
          AddStrips(is_q ? stage.local_q : stage.local_kv, item.lane, StripsOf(tokens));
        } else {
          AddHomeOrder(FindOrAdd(stage.receives, home), is_q, item.lane, tokens);
        }
      });
      return;
    }
    GatheredBlocks& gather = is_q ? stage.gather_q : stage.gather_kv;
    for (int32_t block = item.begin; block < item.end; ++block) {
      AddGathered(gather, item.lane, block);
      for (const Parcel& parcel : stage.receives)
        gather.first_row[gather.first_row.size() - static_cast<size_t>(out_.ranks - parcel.peer)] =
            is_q ? parcel.q_rows : parcel.kv_rows;
      homes_.ForEachPart(side, item.lane, {block, block + 1}, [&](int32_t home, int64_t tokens) {
        if (home != out_.rank)
          AddScattered(FindOrAdd(stage.receives, home), is_q, item.lane, block, tokens);
      });
    }
  }

  static void AddHomeOrder(Parcel& parcel, bool is_q, int64_t lane, Range tokens) {
    AddStrips(is_q ? parcel.q : parcel.kv, lane, StripsOf(tokens));
    if (is_q) parcel.q_tokens += tokens.size();
  }

  static void AddScattered(Parcel& parcel, bool is_q, int32_t lane, int32_t block, int64_t count) {
    int64_t& rows = is_q ? parcel.q_rows : parcel.kv_rows;
    (is_q ? parcel.q_blocks : parcel.kv_blocks).push_back({lane, block, rows});
    rows += count;
    if (is_q) parcel.q_tokens += count;
  }

  void AddGathered(GatheredBlocks& gather, int32_t lane, int32_t block) const {
    gather.blocks.push_back({.lane = lane, .block = block, .at = 0});
    gather.first_row.resize(gather.first_row.size() + static_cast<size_t>(out_.ranks), 0);
  }

  // --- Rings ---

  void AddPass(const Transfer& transfer, int32_t stage) {
    RankStage& now = At(stage);
    if (transfer.from == out_.rank) {
      now.pass_to = transfer.to;
      now.passed_on = SegmentsOf(transfer.blocks);
    }
    if (transfer.to == out_.rank) {
      now.pass_from = transfer.from;
      now.segments = SegmentsOf(transfer.blocks);
      for (const LaneBlocks& item : out_.program.BlocksOf(transfer.blocks))
        now.kv_tokens += TokensOf(Side::kKey, item).size();
    }
  }

  std::vector<Segment> SegmentsOf(Span blocks) const {
    std::map<int32_t, Segment> by_source;
    for (const LaneBlocks& item : out_.program.BlocksOf(blocks)) {
      if (InHomeOrder(item.lane)) {
        ForEachHome(Side::kKey, item, -1, [&](int32_t home, Range tokens) {
          AddStrips(by_source[home].runs, item.lane, StripsOf(tokens));
        });
      } else {
        AddStrips(by_source[Segment::kPackedHere].runs, item.lane,
                  StripsOf(TokensOf(Side::kKey, item)));
      }
    }
    std::vector<Segment> segments;
    for (auto& [source, segment] : by_source) {
      segment.source = source;
      segment.floats = PlaceRuns(segment.runs, out_.sizes.kv);
      segments.push_back(std::move(segment));
    }
    return segments;
  }

  static int64_t PlaceRuns(std::vector<StripRun>& runs, int64_t strip_floats) {
    int64_t at = 0;
    for (StripRun& run : runs) {
      run.at = at;
      at += run.count * strip_floats;
    }
    return at;
  }

  // --- Computing ---

  void AddTasks(int32_t stage) {
    RankStage& now = At(stage);
    now.merges = out_.is_ring && stage > 0;
    std::vector<int32_t> kept;
    for (const Task& task : out_.program.TasksOf(out_.program.stages[Index(stage)].tasks)) {
      if (task.rank != out_.rank) continue;
      const KvSet& set = out_.program.kv_sets[Index(task.kv_set)];
      for (const LaneBlocks& item : out_.program.BlocksOf(task.rows)) {
        for (int32_t row = item.begin; row < item.end; ++row) {
          kept.clear();
          ForEachWord(mask_, set, item.lane, row, [&](int64_t word, uint64_t bits) {
            for (; bits != 0; bits &= bits - 1)
              kept.push_back(static_cast<int32_t>(word * 64 + std::countr_zero(bits)));
          });
          if (kept.empty() && now.merges) continue;
          now.rows.Add(item.lane, row, kept);
          now.work.blocks += std::ssize(kept);
          now.work.rows += !kept.empty();
        }
      }
    }
  }

  // --- Output ---

  void AddReturns(int32_t stage) {
    RankStage& now = At(stage);
    now.q_stage = out_.is_ring ? 0 : stage;
    for (const Transfer& transfer :
         out_.program.TransfersOf(out_.program.stages[Index(stage)].returns)) {
      // In list order, lanes in home order before the others.
      for (const bool home_order : {true, false}) {
        for (const LaneBlocks& item : out_.program.BlocksOf(transfer.blocks)) {
          if (InHomeOrder(item.lane) != home_order) continue;
          if (transfer.from == out_.rank) {
            ReturnToHomes(item, now);
          } else {
            ArriveFrom(transfer.from, item, now);
          }
        }
      }
    }
  }

  void ReturnToHomes(const LaneBlocks& item, RankStage& stage) {
    if (InHomeOrder(item.lane)) {
      ForEachHome(Side::kQuery, item, -1, [&](int32_t home, Range tokens) {
        if (home == out_.rank) {
          int64_t rows = 0;
          AddTokens(stage.own_output, item.lane, tokens, rows);
        } else {
          OutParcel& parcel = FindOrAdd(stage.returns, home);
          AddTokens(parcel.tokens, item.lane, tokens, parcel.rows);
        }
      });
      return;
    }
    GatheredBlocks& scatter = stage.scatter_out;
    for (int32_t block = item.begin; block < item.end; ++block) {
      AddGathered(scatter, item.lane, block);
      homes_.ForEachPart(
          Side::kQuery, item.lane, {block, block + 1}, [&](int32_t home, int64_t tokens) {
            if (home == out_.rank) return;
            OutParcel& parcel = FindOrAdd(stage.returns, home);
            scatter.first_row[scatter.first_row.size() - static_cast<size_t>(out_.ranks - home)] =
                parcel.rows;
            parcel.blocks.push_back({item.lane, block, parcel.rows});
            parcel.rows += tokens;
          });
    }
  }

  void ArriveFrom(int32_t rank, const LaneBlocks& item, RankStage& stage) {
    if (InHomeOrder(item.lane)) {
      ForEachHome(Side::kQuery, item, out_.rank, [&](int32_t, Range tokens) {
        OutParcel& parcel = FindOrAdd(stage.arrivals, rank);
        AddTokens(parcel.tokens, item.lane, tokens, parcel.rows);
      });
      return;
    }
    for (int32_t block = item.begin; block < item.end; ++block) {
      const int64_t count =
          homes_.LocalTokens(Side::kQuery, item.lane, {block, block + 1}, out_.rank);
      if (count == 0) continue;
      OutParcel& parcel = FindOrAdd(stage.arrivals, rank);
      parcel.blocks.push_back({item.lane, block, parcel.rows});
      parcel.rows += count;
    }
  }

  static void AddTokens(std::vector<TokenRows>& list, int64_t lane, Range tokens, int64_t& rows) {
    list.push_back({.lane = static_cast<int32_t>(lane),
                    .first = static_cast<int32_t>(tokens.begin),
                    .count = static_cast<int32_t>(tokens.size()),
                    .row = rows});
    rows += tokens.size();
  }

  // --- Where everything lies ---

  // Sends of all stages first: what also stays here is then read from there, not packed again.
  void PlaceHomeBuffer() {
    PackedStrips packed(*this);
    for (int32_t stage = 0; stage < Stages(); ++stage) {
      RankStage& now = At(stage);
      for (Parcel& parcel : now.sends) {
        parcel.Place(out_.sizes);
        parcel.base = out_.home_floats;
        out_.home_floats += parcel.capacity;
        for (const StripRun& run : parcel.q) AddPackJobs(now, /*is_q=*/true, run, parcel.base);
        for (const StripRun& run : parcel.kv) packed.Send(now, run, parcel.base);
      }
    }
    for (int32_t stage = 0; stage < Stages(); ++stage) {
      RankStage& now = At(stage);
      for (StripRun& run : now.local_q) {
        run.at = out_.home_floats;
        out_.home_floats += run.count * out_.sizes.q;
        AddPackJobs(now, /*is_q=*/true, run, 0);
      }
      now.local_kv = packed.Keep(now, now.local_kv);
    }
    out_.home_floats = RoundUp(out_.home_floats, kLineFloats);
  }

  void AddPackJobs(RankStage& stage, bool is_q, const StripRun& run, int64_t base) const {
    const int64_t strip_floats = is_q ? out_.sizes.q : out_.sizes.kv;
    for (int32_t done = 0; done < run.count; done += kJobStrips) {
      stage.pack.push_back({.is_q = is_q,
                            .run = {.lane = run.lane,
                                    .first = run.first + done,
                                    .count = std::min(kJobStrips, run.count - done),
                                    .at = base + run.at + done * strip_floats}});
    }
  }

  // Where K and V of this home's strips have been packed.
  class PackedStrips {
   public:
    explicit PackedStrips(Maker& maker)
        : maker_(maker), lanes_(static_cast<size_t>(maker.problem().lanes.Count())) {}

    // Packs what is new, copies the rest.
    void Send(RankStage& stage, const StripRun& run, int64_t base) {
      const int64_t strip = maker_.out_.sizes.kv;
      ForEachAlike(run, [&](const StripRun& part, int64_t packed_at) {
        const int64_t to = base + run.at + (part.first - run.first) * strip;
        if (packed_at < 0) {
          StripRun placed = part;
          placed.at = to;
          maker_.AddPackJobs(stage, /*is_q=*/false, placed, 0);
          Remember(placed);
        } else {
          stage.copy.push_back({.from = packed_at, .to = to, .floats = part.count * strip});
        }
      });
    }

    // Packs what is new; the runs with their places.
    std::vector<StripRun> Keep(RankStage& stage, const std::vector<StripRun>& runs) {
      std::vector<StripRun> kept;
      for (const StripRun& run : runs) {
        ForEachAlike(run, [&](StripRun part, int64_t packed_at) {
          part.at = packed_at;
          if (packed_at < 0) {
            part.at = maker_.out_.home_floats;
            maker_.out_.home_floats += part.count * maker_.out_.sizes.kv;
            maker_.AddPackJobs(stage, /*is_q=*/false, part, 0);
            Remember(part);
          }
          kept.push_back(part);
        });
      }
      return kept;
    }

   private:
    // Parts of a run that are not packed, or lie one after the other: (part, place or -1).
    template <typename Visit>
    void ForEachAlike(const StripRun& run, Visit&& visit) {
      std::vector<int64_t>& at = Lane(run.lane);
      const int64_t strip = maker_.out_.sizes.kv;
      for (int32_t first = 0; first < run.count;) {
        const int64_t begin = at[Index(run.first + first)];
        int32_t end = first + 1;
        while (end < run.count &&
               at[Index(run.first + end)] == (begin < 0 ? -1 : begin + (end - first) * strip)) {
          ++end;
        }
        visit(StripRun{.lane = run.lane, .first = run.first + first, .count = end - first}, begin);
        first = end;
      }
    }
    void Remember(const StripRun& run) {
      std::vector<int64_t>& at = Lane(run.lane);
      for (int32_t i = 0; i < run.count; ++i)
        at[Index(run.first + i)] = run.at + i * maker_.out_.sizes.kv;
    }
    std::vector<int64_t>& Lane(int32_t lane) {
      std::vector<int64_t>& at = lanes_[Index(lane)];
      if (at.empty()) at.assign(Index(CeilDiv(maker_.homes_.Tokens(Side::kKey), kStripTokens)), -1);
      return at;
    }

    Maker& maker_;
    std::vector<std::vector<int64_t>> lanes_;  // [lanes][strips], lanes that were asked for
  };

  void PlaceInputs(int32_t stage) {
    RankStage& now = At(stage);
    int64_t at = 0;
    for (Parcel& parcel : now.receives) {
      parcel.Place(out_.sizes);
      parcel.base = at;
      at += parcel.capacity;
    }
    if (out_.is_ring && stage == 0) HoldSegments(now);
    const int64_t per_block = problem().grid.block_tokens / kStripTokens;
    auto place = [&](GatheredBlocks& gather, Side side, int64_t strip_floats) {
      for (GatheredBlock& block : gather.blocks) {
        block.at = at;
        const LaneBlocks item{block.lane, block.block, block.block + 1};
        const int64_t strips = CeilDiv(TokensOf(side, item).size(), kStripTokens);
        EQ_CHECK(strips <= per_block);
        at += strips * strip_floats;
      }
    };
    const int64_t gathered_kv = at;
    place(now.gather_kv, Side::kKey, out_.sizes.kv);
    place(now.gather_q, Side::kQuery, out_.sizes.q);
    for (Segment& segment : now.segments) {
      if (stage == 0) {
        if (segment.source == Segment::kPackedHere) segment.base = gathered_kv;
        continue;
      }
      segment.base = at;
      at += segment.floats;
    }
    now.input_floats = RoundUp(at, kLineFloats);
  }

  // What the owner of a chunk holds, by where it came from.
  void HoldSegments(RankStage& first) {
    auto add = [&](int32_t source, const std::vector<StripRun>& runs, int64_t base) {
      if (runs.empty()) return;
      Segment segment{.source = source, .runs = runs, .floats = 0, .base = base};
      segment.floats = PlaceRuns(segment.runs, out_.sizes.kv);
      first.segments.push_back(std::move(segment));
    };
    for (const Parcel& parcel : first.receives) add(parcel.peer, parcel.kv, parcel.base);
    std::vector<StripRun> local;
    for (const StripRun& run : first.local_kv)
      AddStrips(local, run.lane, {run.first, run.first + run.count});
    if (!first.local_kv.empty()) add(out_.rank, local, first.local_kv.front().at);
    if (!first.gather_kv.blocks.empty())
      first.segments.push_back(
          {.source = Segment::kPackedHere, .runs = {}, .floats = 0, .base = 0});
  }

  void PlaceOutputs(int32_t stage) {
    RankStage& now = At(stage);
    const int64_t head_dim = out_.sizes.head_dim;
    int64_t at = 0;
    for (OutParcel& parcel : now.returns) {
      parcel.base = at;
      at += RoundUp(parcel.Floats(head_dim), kLineFloats);
    }
    for (GatheredBlock& block : now.scatter_out.blocks) {
      block.at = at;
      at += problem().grid.block_tokens * (head_dim + 1);
    }
    now.output_floats = RoundUp(at, kLineFloats);
    const std::vector<Parcel>& sent = At(now.q_stage).sends;
    for (const OutParcel& parcel : now.arrivals) {
      const auto of = std::find_if(sent.begin(), sent.end(),
                                   [&](const Parcel& p) { return p.peer == parcel.peer; });
      EQ_CHECK(of != sent.end() && of->q_tokens == parcel.rows,
               "stage {}: output of rank {} for queries that were not sent", stage, parcel.peer);
      now.arrival_parcel.push_back(of - sent.begin());
    }
  }

  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  const BlockMask& mask_;
  const HomeMap& homes_;
  Itinerary out_;
};

}  // namespace

void Parcel::Place(const StripSizes& sizes) {
  int64_t at = 0;
  for (StripRun& run : kv) {
    run.at = at;
    at += run.count * sizes.kv;
  }
  kv_rows_at = at;
  q_rows_at = at + 2 * kv_rows * sizes.head_dim;
  at = q_rows_at + q_rows * sizes.head_dim;
  if (!q.empty()) at = RoundUp(at, kLineFloats);
  for (StripRun& run : q) {
    run.at = at;
    at += run.count * sizes.q;
  }
  floats = at;
  capacity = RoundUp(std::max(floats, q_rows_at + q_tokens * (sizes.head_dim + 1)), kLineFloats);
}

Itinerary MakeItinerary(Program program, std::shared_ptr<const HomeMap> homes,
                        const BlockMask& mask, int32_t rank, int64_t head_dim) {
  return Maker(std::move(program), std::move(homes), mask, rank, head_dim).Make();
}

}  // namespace equitile
