// One rank's own part of a Program: what it packs, sends, receives, computes and returns, down to
// bytes. Worked out once per plan and mask; layers and steps that keep both run it again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "equitile/exec/home_rows.h"
#include "equitile/exec/tail_exchange.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/program.h"
#include "equitile/plan/predict/stage_work.h"

namespace equitile {

// Bytes of everything that lies in a buffer or travels, for one head_dim and arithmetic: the one
// place that knows how wide a number is. Strips travel as they are computed, and so do tokens of
// strips that lie on several homes: rounded each by its own scale, so that it does not matter where
// they are packed.
struct StripSizes {
  int64_t head_dim = 0;
  Compute compute = Compute::kF32;
  int64_t row = 0;  // a token of Q, K or V that is not packed
  int64_t q = 0;    // a strip of queries
  int64_t k = 0;    // a strip of keys; its strip of values is behind it
  int64_t kv = 0;   // both
  int64_t out = 0;  // a token of output, f32
  int64_t lse = sizeof(float);

  explicit StripSizes(int64_t dim, Compute of = Compute::kF32)
      : head_dim(dim),
        compute(of),
        row(of == Compute::kF32 ? dim * int64_t{sizeof(float)} : RoundedTokenBytes(dim, of)),
        q(StripBytes(dim, of)),
        k(q),
        kv(2 * k),
        out(dim * int64_t{sizeof(float)}) {}
};

// Strips [first, first + count) of a lane, one after the other from byte `at` on.
struct StripRun {
  int32_t lane = 0, first = 0, count = 0;
  int64_t at = 0;
};
// Its positions in a sequence of `tokens`; the last strip may be short.
inline Range PositionsOf(const StripRun& run, int64_t tokens) {
  const int64_t first = run.first * kStripTokens;
  return {first, std::min(first + run.count * kStripTokens, tokens)};
}

// Positions [first, first + count) of a lane's order, as rows from `row` on: all of them or, where
// a list is called scattered, those that lie on one home, ascending.
struct TokenRows {
  int32_t lane = 0, first = 0, count = 0;
  int64_t row = 0;
};

// Strips whose tokens lie on several homes: blocks of lanes that are not in home order, and single
// strips across a border of homes. Homes send their tokens as plain rows; the rank that computes
// packs them (or unpacks, for output). Rows of home h begin at row first_row[run * ranks + h] of
// that home's parcel.
struct GatheredStrips {
  std::vector<StripRun> runs;
  std::vector<int64_t> first_row;  // [runs][ranks]
};

// What goes from one home to one rank in one stage: one message, in this order:
//   strips of K and V | rows of K, rows of V | rows of Q | strips of Q
// Both sides work it out from the same lists. The output of its queries comes back into the part
// that held Q, when that has been sent.
struct Parcel {
  int32_t peer = 0;
  std::vector<StripRun> kv, q;
  std::vector<TokenRows> kv_scattered, q_scattered;
  int64_t kv_rows = 0, q_rows = 0;  // of kv_scattered, q_scattered
  int64_t q_tokens = 0;             // in strips and rows
  int64_t kv_rows_at = 0, q_rows_at = 0;
  int64_t bytes = 0;     // of the message
  int64_t capacity = 0;  // with room for output and log-sum-exp from q_rows_at on
  int64_t base = 0;      // where it lies in its buffer

  void Place(const StripSizes& sizes);  // fills `at` and all that follows from the lists
};

// Output of one stage between the rank that computed it and one home: rows [rows][head_dim], then
// log-sum-exp [rows].
struct OutParcel {
  int32_t peer = 0;
  std::vector<TokenRows> tokens, scattered;
  int64_t rows = 0;
  int64_t base = 0;

  int64_t Bytes(const StripSizes& sizes) const { return rows * (sizes.out + sizes.lse); }
};

// K and V of a ring's chunk that came from one source; what is passed on in a stage is its
// beginning.
struct Segment {
  static constexpr int32_t kPackedHere = -1;  // gathered by the first who held it
  int32_t source = 0;                         // home, or kPackedHere
  std::vector<StripRun> runs;
  int64_t bytes = 0;
  int64_t base = 0;
};

// Strips [first, first + count) of one lane that are packed together; `at` in the home's buffer.
struct PackJob {
  bool is_q = false;
  StripRun run;
};

// Strips that go to a second rank: packed once, then copied.
struct CopyJob {
  int64_t from = 0, to = 0, bytes = 0;
};

struct RankStage {
  // --- As a home ---
  std::vector<PackJob> pack;  // into sends, and what stays here
  std::vector<CopyJob> copy;
  int64_t pack_bytes = 0;  // through pack, copy and rows for others
  std::vector<Parcel> sends;
  std::vector<OutParcel> arrivals;      // output of other ranks for this home
  std::vector<int64_t> arrival_parcel;  // [arrivals] which of q_stage's sends its memory is
  int32_t q_stage = 0;                  // in which the queries of `arrivals` were sent

  // --- As a rank that computes ---
  std::vector<StripRun> local_kv, local_q;  // in the home's buffer
  std::vector<Parcel> receives;
  GatheredStrips gather_kv, gather_q;
  int32_t pass_from = -1, pass_to = -1;
  std::vector<Segment> segments;        // held in this stage (rings only)
  std::vector<Segment> passed_on;       // beginnings of the stage before's, sent to pass_to
  int64_t input_bytes = 0;              // of receives, gathered strips and segments passed here
  int64_t kv_tokens = 0, q_tokens = 0;  // that arrive for this stage, local ones too
  AttentionRows rows;
  bool merges = false;  // rows are further parts of rows of earlier stages
  Work work;
  std::vector<OutParcel> returns;
  std::vector<TokenRows> own_output;  // rows whose home is here: written in place
  GatheredStrips scatter_out;         // `at`: rows [tokens of the strips][head_dim], then lse
  int64_t output_bytes = 0;           // of returns and scatter_out
};

struct Itinerary {
  int32_t rank = 0;
  int32_t ranks = 1;
  StripSizes sizes{0};
  std::shared_ptr<const HomeMap> homes;
  HomeRows home_rows;  // of this rank
  Program program;
  std::vector<RankStage> stages;
  bool is_ring = false;  // rows are computed in parts, one per stage, and returned after the last
  bool is_local = true;  // nothing leaves or reaches this rank: the kernel reads the sources itself
  int64_t home_bytes = 0;
  LaneMasks masks;
  TailRoutes tails;

  int64_t Bytes() const;  // of its lists
};

// The rank's part of Lower(plan, masks).
Itinerary MakeItinerary(Program program, std::shared_ptr<const HomeMap> homes,
                        const LaneMasks& masks, int32_t rank, int64_t head_dim,
                        Compute compute = Compute::kF32);

}  // namespace equitile
