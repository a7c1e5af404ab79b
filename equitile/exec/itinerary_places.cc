#include "equitile/exec/itinerary_places.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Buffers are cut on cache lines.
constexpr int64_t kLineBytes = static_cast<int64_t>(kBufferAlignment);
// Strips per job: a few dozen kilobytes, so that threads share even one lane.
constexpr int32_t kJobStrips = 2;
constexpr int32_t kUnpackTokens = 64;

size_t Index(int64_t i) { return static_cast<size_t>(i); }

class Placer {
 public:
  explicit Placer(Itinerary& itinerary) : out_(itinerary) {}

  void Place() {
    PlaceHomeBuffer();
    for (int32_t stage = 0; stage < Stages(); ++stage) PlaceInputs(stage);
    for (int32_t stage = 0; stage < Stages(); ++stage) PlaceOutputs(stage);
  }

 private:
  int32_t Stages() const { return static_cast<int32_t>(out_.stages.size()); }
  RankStage& At(int32_t stage) { return out_.stages[Index(stage)]; }

  // Sends of all stages first: what also stays here is then read from there, not packed again.
  void PlaceHomeBuffer() {
    PackedStrips packed(*this);
    for (int32_t stage = 0; stage < Stages(); ++stage) {
      RankStage& now = At(stage);
      for (Parcel& parcel : now.sends) {
        parcel.Place(out_.sizes);
        parcel.base = out_.home_bytes;
        out_.home_bytes += parcel.capacity;
        for (const StripRun& run : parcel.q) AddPackJobs(now, /*is_q=*/true, run, parcel.base);
        for (const StripRun& run : parcel.kv) packed.Send(now, run, parcel.base);
      }
    }
    for (int32_t stage = 0; stage < Stages(); ++stage) {
      RankStage& now = At(stage);
      for (StripRun& run : now.local_q) {
        run.at = out_.home_bytes;
        out_.home_bytes += run.count * out_.sizes.q;
        AddPackJobs(now, /*is_q=*/true, run, 0);
      }
      now.local_kv = packed.Keep(now, now.local_kv);
    }
    out_.home_bytes = RoundUp(out_.home_bytes, kLineBytes);
    for (RankStage& stage : out_.stages) {
      // A token's heads are neighbours in memory: all of them while its rows are open.
      std::stable_sort(
          stage.pack.begin(), stage.pack.end(), [](const PackJob& a, const PackJob& b) {
            return a.run.first != b.run.first ? a.run.first < b.run.first : a.run.lane < b.run.lane;
          });
      stage.pack_bytes = BytesToPack(stage);
    }
  }

  int64_t BytesToPack(const RankStage& stage) const {
    int64_t bytes = 0;
    for (const PackJob& job : stage.pack)
      bytes += job.run.count * (job.is_q ? out_.sizes.q : out_.sizes.kv);
    for (const CopyJob& job : stage.copy) bytes += job.bytes;
    for (const Parcel& parcel : stage.sends)
      bytes += (2 * parcel.kv_rows + parcel.q_rows) * out_.sizes.row;
    return bytes;
  }

  // For the same reason, where output is put in its place.
  static void CutByTokens(std::vector<TokenRows>& runs) {
    std::vector<TokenRows> pieces;
    for (const TokenRows& run : runs) {
      for (int32_t done = 0; done < run.count; done += kUnpackTokens) {
        pieces.push_back({.lane = run.lane,
                          .first = run.first + done,
                          .count = std::min(kUnpackTokens, run.count - done),
                          .row = run.row + done});
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const TokenRows& a, const TokenRows& b) {
      return a.first / kUnpackTokens < b.first / kUnpackTokens;
    });
    runs = std::move(pieces);
  }

  void AddPackJobs(RankStage& stage, bool is_q, const StripRun& run, int64_t base) const {
    const int64_t strip_bytes = is_q ? out_.sizes.q : out_.sizes.kv;
    for (int32_t done = 0; done < run.count; done += kJobStrips) {
      stage.pack.push_back({.is_q = is_q,
                            .run = {.lane = run.lane,
                                    .first = run.first + done,
                                    .count = std::min(kJobStrips, run.count - done),
                                    .at = base + run.at + done * strip_bytes}});
    }
  }

  // Where K and V of this home's strips have been packed.
  class PackedStrips {
   public:
    explicit PackedStrips(Placer& placer)
        : placer_(placer), lanes_(static_cast<size_t>(placer.out_.program.problem.lanes.Count())) {}

    // Packs what is new, copies the rest.
    void Send(RankStage& stage, const StripRun& run, int64_t base) {
      const int64_t strip = placer_.out_.sizes.kv;
      ForEachAlike(run, [&](const StripRun& part, int64_t packed_at) {
        const int64_t to = base + run.at + (part.first - run.first) * strip;
        if (packed_at < 0) {
          StripRun placed = part;
          placed.at = to;
          placer_.AddPackJobs(stage, /*is_q=*/false, placed, 0);
          Remember(placed);
        } else {
          stage.copy.push_back({.from = packed_at, .to = to, .bytes = part.count * strip});
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
            part.at = placer_.out_.home_bytes;
            placer_.out_.home_bytes += part.count * placer_.out_.sizes.kv;
            placer_.AddPackJobs(stage, /*is_q=*/false, part, 0);
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
      const int64_t strip = placer_.out_.sizes.kv;
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
        at[Index(run.first + i)] = run.at + i * placer_.out_.sizes.kv;
    }
    std::vector<int64_t>& Lane(int32_t lane) {
      std::vector<int64_t>& at = lanes_[Index(lane)];
      if (at.empty())
        at.assign(Index(CeilDiv(placer_.out_.homes->Tokens(Side::kKey), kStripTokens)), -1);
      return at;
    }

    Placer& placer_;
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
    const int64_t gathered_kv = at;
    at = PlaceRuns(now.gather_kv.runs, out_.sizes.kv, at);
    at = PlaceRuns(now.gather_q.runs, out_.sizes.q, at);
    for (Segment& segment : now.segments) {
      if (stage == 0) {
        if (segment.source == Segment::kPackedHere) segment.base = gathered_kv;
        continue;
      }
      segment.base = at;
      at += segment.bytes;
    }
    now.input_bytes = RoundUp(at, kLineBytes);
  }

  // What the owner of a chunk holds, by where it came from.
  void HoldSegments(RankStage& first) {
    auto add = [&](int32_t source, const std::vector<StripRun>& runs, int64_t base) {
      if (runs.empty()) return;
      Segment segment{.source = source, .runs = runs, .bytes = 0, .base = base};
      segment.bytes = PlaceRuns(segment.runs, out_.sizes.kv);
      first.segments.push_back(std::move(segment));
    };
    for (const Parcel& parcel : first.receives) add(parcel.peer, parcel.kv, parcel.base);
    std::vector<StripRun> local;
    for (const StripRun& run : first.local_kv)
      AddStrips(local, run.lane, {run.first, run.first + run.count});
    if (!first.local_kv.empty()) add(out_.rank, local, first.local_kv.front().at);
    if (!first.gather_kv.runs.empty())
      first.segments.push_back({.source = Segment::kPackedHere, .runs = {}, .bytes = 0, .base = 0});
  }

  void PlaceOutputs(int32_t stage) {
    RankStage& now = At(stage);
    int64_t at = 0;
    for (OutParcel& parcel : now.returns) {
      parcel.base = at;
      at += RoundUp(parcel.Bytes(out_.sizes), kLineBytes);
    }
    at = PlaceRuns(now.scatter_out.runs, kStripTokens * (out_.sizes.out + out_.sizes.lse), at);
    now.output_bytes = RoundUp(at, kLineBytes);
    const std::vector<Parcel>& sent = At(now.q_stage).sends;
    for (OutParcel& parcel : now.arrivals) {
      CutByTokens(parcel.tokens);
      const auto of = std::find_if(sent.begin(), sent.end(),
                                   [&](const Parcel& p) { return p.peer == parcel.peer; });
      EQ_CHECK(of != sent.end() && of->q_tokens == parcel.rows,
               "stage {}: output of rank {} for queries that were not sent", stage, parcel.peer);
      now.arrival_parcel.push_back(of - sent.begin());
    }
  }

  Itinerary& out_;
};

}  // namespace

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

int64_t PlaceRuns(std::vector<StripRun>& runs, int64_t strip_bytes, int64_t at) {
  for (StripRun& run : runs) {
    run.at = at;
    at += run.count * strip_bytes;
  }
  return at;
}

void Parcel::Place(const StripSizes& sizes) {
  int64_t at = PlaceRuns(kv, sizes.kv);
  kv_rows_at = at;
  q_rows_at = at + 2 * kv_rows * sizes.row;
  at = q_rows_at + q_rows * sizes.row;
  if (!q.empty()) at = RoundUp(at, kLineBytes);
  bytes = PlaceRuns(q, sizes.q, at);
  capacity = RoundUp(std::max(bytes, q_rows_at + q_tokens * (sizes.out + sizes.lse)), kLineBytes);
}

void PlaceItinerary(Itinerary& itinerary) { Placer(itinerary).Place(); }

}  // namespace equitile
