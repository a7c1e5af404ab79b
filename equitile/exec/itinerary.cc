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
        StripSizes sizes)
      : mask_(masks.blocks()),
        homes_(*homes),
        out_{.rank = rank,
             .ranks = program.problem.ranks,
             .sizes = sizes,
             .homes = homes,
             .home_rows = HomeRows(*homes, program.problem.lanes, rank),
             .program = std::move(program),
             .stages = {},
             .masks = masks,
             .tails = {}} {
    out_.stages.resize(out_.program.stages.size());
    for (const Task& task : out_.program.tasks) out_.is_ring |= task.kv_set != 0;
  }

  Itinerary Make() {
    for (int32_t stage = 0; stage < Stages(); ++stage) AddInputs(stage);
    for (int32_t stage = 0; stage < Stages(); ++stage) AddTasks(stage);
    for (int32_t stage = 0; stage < Stages(); ++stage) AddReturns(stage);
    PlaceItinerary(out_);
    out_.tails = MakeTailRoutes(out_.program, homes_, out_.rank);
    out_.is_local &= out_.home_rows.FormView();
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

  // Cuts blocks of a lane into pieces, positions ascending: whole(home, tokens) for strips that lie
  // on one home, mixed(positions) for those that lie on several. Where `only` names a home, pieces
  // without its tokens may be left out.
  static constexpr int32_t kAnyHome = -1;
  template <typename Whole, typename Mixed>
  void ForEachPiece(Side side, const LaneBlocks& item, int32_t only, Whole&& whole,
                    Mixed&& mixed) const {
    Range tokens = TokensOf(side, item);
    if (!InHomeOrder(item.lane)) {
      for (int64_t at = tokens.begin; at < tokens.end; at += problem().grid.block_tokens)
        mixed(Range{at, std::min(at + problem().grid.block_tokens, tokens.end)});
      return;
    }
    const int64_t batch_item = problem().lanes.BatchOf(item.lane);
    if (only != kAnyHome) {
      const Range own = homes_.RankTokens(side, only, batch_item);
      tokens.begin = std::max(tokens.begin, own.begin / kStripTokens * kStripTokens);
      tokens.end =
          own.empty() ? tokens.begin : std::min(tokens.end, RoundUp(own.end, kStripTokens));
    }
    while (tokens.begin < tokens.end) {
      const int32_t home = homes_.RankOf(side, batch_item, tokens.begin);
      const int64_t home_end = homes_.RankTokens(side, home, batch_item).end;
      // The last strip of the sequence may be short.
      const int64_t whole_end =
          home_end == homes_.Tokens(side) ? home_end : home_end / kStripTokens * kStripTokens;
      const int64_t end =
          std::min(tokens.end, whole_end > tokens.begin ? whole_end : tokens.begin + kStripTokens);
      if (whole_end > tokens.begin) {
        whole(home, Range{tokens.begin, end});
      } else {
        mixed(Range{tokens.begin, end});
      }
      tokens.begin = end;
    }
  }

  // Visits (home, tokens > 0) for a mixed piece, homes ascending.
  template <typename Visit>
  void ForEachPart(Side side, int64_t lane, Range positions, Visit&& visit) const {
    if (!InHomeOrder(lane)) {
      const int64_t block = positions.begin / problem().grid.block_tokens;
      homes_.ForEachPart(side, lane, {block, block + 1}, visit);
      return;
    }
    const int64_t item = problem().lanes.BatchOf(lane);
    for (int64_t token = positions.begin; token < positions.end;) {
      const int32_t home = homes_.RankOf(side, item, token);
      const int64_t end = std::min(positions.end, homes_.RankTokens(side, home, item).end);
      visit(home, end - token);
      token = end;
    }
  }
  int64_t PartHere(Side side, int64_t lane, Range positions) const {
    int64_t here = 0;
    ForEachPart(side, lane, positions,
                [&](int32_t home, int64_t tokens) { here += home == out_.rank ? tokens : 0; });
    return here;
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
    ForEachPiece(
        side, item, out_.rank,
        [&](int32_t home, Range tokens) {
          if (home == out_.rank)
            AddWhole(FindOrAdd(stage.sends, transfer.to), is_q, item.lane, tokens);
        },
        [&](Range positions) {
          const int64_t count = PartHere(side, item.lane, positions);
          if (count > 0)
            AddScattered(FindOrAdd(stage.sends, transfer.to), is_q, item.lane, positions, count);
        });
  }

  void ReceiveFromHomes(Cargo cargo, const LaneBlocks& item, RankStage& stage) {
    const bool is_q = cargo == Cargo::kQ;
    const Side side = is_q ? Side::kQuery : Side::kKey;
    (is_q ? stage.q_tokens : stage.kv_tokens) += TokensOf(side, item).size();
    ForEachPiece(
        side, item, kAnyHome,
        [&](int32_t home, Range tokens) {
          if (home == out_.rank) {
            AddStrips(is_q ? stage.local_q : stage.local_kv, item.lane, StripsOf(tokens));
          } else {
            AddWhole(FindOrAdd(stage.receives, home), is_q, item.lane, tokens);
          }
        },
        [&](Range positions) {
          const std::span<int64_t> first_row =
              AddGathered(is_q ? stage.gather_q : stage.gather_kv, item.lane, positions);
          ForEachPart(side, item.lane, positions, [&](int32_t home, int64_t tokens) {
            if (home == out_.rank) return;
            Parcel& parcel = FindOrAdd(stage.receives, home);
            first_row[Index(home)] = is_q ? parcel.q_rows : parcel.kv_rows;
            AddScattered(parcel, is_q, item.lane, positions, tokens);
          });
        });
  }

  static void AddWhole(Parcel& parcel, bool is_q, int64_t lane, Range tokens) {
    AddStrips(is_q ? parcel.q : parcel.kv, lane, StripsOf(tokens));
    if (is_q) parcel.q_tokens += tokens.size();
  }

  static void AddScattered(Parcel& parcel, bool is_q, int64_t lane, Range positions,
                           int64_t count) {
    AddRows(is_q ? parcel.q_scattered : parcel.kv_scattered, lane, positions, count,
            is_q ? parcel.q_rows : parcel.kv_rows);
    if (is_q) parcel.q_tokens += count;
  }

  // `count` of the positions, as rows behind those that there are.
  static void AddRows(std::vector<TokenRows>& list, int64_t lane, Range positions, int64_t count,
                      int64_t& rows) {
    list.push_back({.lane = static_cast<int32_t>(lane),
                    .first = static_cast<int32_t>(positions.begin),
                    .count = static_cast<int32_t>(positions.size()),
                    .row = rows});
    rows += count;
  }

  // The new run's first rows, [ranks].
  std::span<int64_t> AddGathered(GatheredStrips& gathered, int64_t lane, Range positions) const {
    const Range strips = StripsOf(positions);
    gathered.runs.push_back({.lane = static_cast<int32_t>(lane),
                             .first = static_cast<int32_t>(strips.begin),
                             .count = static_cast<int32_t>(strips.size())});
    gathered.first_row.resize(gathered.first_row.size() + Index(out_.ranks), 0);
    return std::span(gathered.first_row).last(Index(out_.ranks));
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
      ForEachPiece(
          Side::kKey, item, kAnyHome,
          [&](int32_t home, Range tokens) {
            AddStrips(by_source[home].runs, item.lane, StripsOf(tokens));
          },
          [&](Range positions) {
            AddStrips(by_source[Segment::kPackedHere].runs, item.lane, StripsOf(positions));
          });
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
      for (const LaneBlocks& item : out_.program.BlocksOf(transfer.blocks)) {
        if (transfer.from == out_.rank) {
          ReturnToHomes(item, now);
        } else {
          ArriveFrom(transfer.from, item, now);
        }
      }
    }
  }

  void ReturnToHomes(const LaneBlocks& item, RankStage& stage) {
    ForEachPiece(
        Side::kQuery, item, kAnyHome,
        [&](int32_t home, Range tokens) {
          int64_t own_rows = 0;
          OutParcel* parcel = home == out_.rank ? nullptr : &FindOrAdd(stage.returns, home);
          AddRows(parcel == nullptr ? stage.own_output : parcel->tokens, item.lane, tokens,
                  tokens.size(), parcel == nullptr ? own_rows : parcel->rows);
        },
        [&](Range positions) {
          const std::span<int64_t> first_row = AddGathered(stage.scatter_out, item.lane, positions);
          ForEachPart(Side::kQuery, item.lane, positions, [&](int32_t home, int64_t tokens) {
            if (home == out_.rank) return;
            OutParcel& parcel = FindOrAdd(stage.returns, home);
            first_row[Index(home)] = parcel.rows;
            AddRows(parcel.scattered, item.lane, positions, tokens, parcel.rows);
          });
        });
  }

  void ArriveFrom(int32_t rank, const LaneBlocks& item, RankStage& stage) {
    ForEachPiece(
        Side::kQuery, item, out_.rank,
        [&](int32_t home, Range tokens) {
          if (home != out_.rank) return;
          OutParcel& parcel = FindOrAdd(stage.arrivals, rank);
          AddRows(parcel.tokens, item.lane, tokens, tokens.size(), parcel.rows);
        },
        [&](Range positions) {
          const int64_t count = PartHere(Side::kQuery, item.lane, positions);
          if (count == 0) return;
          OutParcel& parcel = FindOrAdd(stage.arrivals, rank);
          AddRows(parcel.scattered, item.lane, positions, count, parcel.rows);
        });
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
    for (const GatheredStrips* gathered : {&s.gather_kv, &s.gather_q, &s.scatter_out})
      bytes += of(gathered->runs, gathered->first_row);
    for (const auto* parcels : {&s.sends, &s.receives}) {
      for (const Parcel& parcel : *parcels)
        bytes += of(parcel.kv, parcel.q, parcel.kv_scattered, parcel.q_scattered);
    }
    for (const auto* parcels : {&s.arrivals, &s.returns}) {
      for (const OutParcel& parcel : *parcels) bytes += of(parcel.tokens, parcel.scattered);
    }
    for (const auto* segments : {&s.segments, &s.passed_on}) {
      for (const Segment& segment : *segments) bytes += of(segment.runs);
    }
  }
  return bytes;
}

Itinerary MakeItinerary(Program program, std::shared_ptr<const HomeMap> homes,
                        const LaneMasks& masks, int32_t rank, int64_t head_dim, Compute compute) {
  return Maker(std::move(program), std::move(homes), masks, rank, StripSizes(head_dim, compute))
      .Make();
}

}  // namespace equitile
