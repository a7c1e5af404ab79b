#include "equitile/exec/itinerary.h"

#include <algorithm>
#include <bit>
#include <map>

#include "equitile/exec/itinerary_places.h"
#include "equitile/plan/core/walker.h"

namespace equitile {
namespace {

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

class Maker {
 public:
  Maker(Program program, std::shared_ptr<const HomeMap> homes, const LaneMasks& masks, int32_t rank,
        int64_t head_dim)
      : mask_(masks.blocks()), homes_(*homes) {
    out_.masks = masks;
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
    PlaceItinerary(out_);
    out_.tails = MakeTailRoutes(out_.program, homes_, out_.rank);
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
  bool InHomeOrder(int64_t lane) const { return problem().InHomeOrder(lane); }

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
      if (transfer.cargo == Cargo::kMeans) continue;  // TailRoutes
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
      segment.bytes = PlaceRuns(segment.runs, out_.sizes.kv);
      segments.push_back(std::move(segment));
    }
    return segments;
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

  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  const BlockMask& mask_;
  const HomeMap& homes_;
  Itinerary out_;
};

}  // namespace

int64_t Itinerary::Bytes() const {
  const auto of = [](const auto&... lists) {
    return static_cast<int64_t>(((lists.capacity() * sizeof(lists[0])) + ... + 0));
  };
  int64_t bytes = of(program.stages, program.transfers, program.tasks, program.blocks, stages);
  for (const KvSet& set : program.kv_sets) bytes += of(set);
  for (const RankStage& s : stages) {
    bytes += of(s.pack, s.copy, s.arrival_parcel, s.local_kv, s.local_q, s.own_output);
    bytes += of(s.rows.rows, s.rows.first, s.rows.kv_blocks);
    for (const GatheredBlocks* blocks : {&s.gather_kv, &s.gather_q, &s.scatter_out})
      bytes += of(blocks->blocks, blocks->first_row);
    for (const auto* parcels : {&s.sends, &s.receives}) {
      for (const Parcel& parcel : *parcels)
        bytes += of(parcel.kv, parcel.q, parcel.kv_blocks, parcel.q_blocks);
    }
    for (const auto* parcels : {&s.arrivals, &s.returns}) {
      for (const OutParcel& parcel : *parcels) bytes += of(parcel.tokens, parcel.blocks);
    }
    for (const auto* segments : {&s.segments, &s.passed_on}) {
      for (const Segment& segment : *segments) bytes += of(segment.runs);
    }
  }
  return bytes;
}

Itinerary MakeItinerary(Program program, std::shared_ptr<const HomeMap> homes,
                        const LaneMasks& masks, int32_t rank, int64_t head_dim) {
  return Maker(std::move(program), std::move(homes), masks, rank, head_dim).Make();
}

}  // namespace equitile
