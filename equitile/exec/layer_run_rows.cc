// Where rows and strips of a run lie, and how they get there.
#include "equitile/exec/layer_run.h"

#include <algorithm>
#include <cstring>

namespace equitile {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

// Rows of tokens and of output are f32.
float* AsFloats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

int64_t StripsOf(const GatheredStrips& gathered) {
  int64_t strips = 0;
  for (const StripRun& run : gathered.runs) strips += run.count;
  return strips;
}

}  // namespace

LayerRun::OutputRows LayerRun::RowsAt(std::byte* data, int64_t rows) const {
  return {.out = AsFloats(data), .lse = AsFloats(data + rows * sizes_.out)};
}

void LayerRun::PackHome(int32_t stage) {
  const RankStage& now = At(stage);
  if (it_.is_local) return;
  Packing(stage, now.pack_bytes, [&] {
    pool_.ParallelFor(std::ssize(now.pack), [&](int64_t i, int) { Pack(now.pack[Index(i)]); });
    for (const Parcel& parcel : now.sends) {
      pool_.ParallelFor(std::ssize(parcel.kv_scattered), [&](int64_t i, int) {
        const TokenRows& scattered = parcel.kv_scattered[Index(i)];
        std::byte* k = home_ + parcel.base + parcel.kv_rows_at;
        WriteRows(call_.k, StripLayout::kKey, scattered, k);
        WriteRows(call_.v, StripLayout::kValue, scattered, k + parcel.kv_rows * sizes_.row);
      });
      pool_.ParallelFor(std::ssize(parcel.q_scattered), [&](int64_t i, int) {
        WriteRows(call_.q, StripLayout::kQuery, parcel.q_scattered[Index(i)],
                  home_ + parcel.base + parcel.q_rows_at);
      });
    }
    pool_.ParallelFor(std::ssize(now.copy), [&](int64_t i, int) {
      const CopyJob& job = now.copy[Index(i)];
      std::memcpy(home_ + job.to, home_ + job.from, Index(job.bytes));
    });
  });
}

void LayerRun::Pack(const PackJob& job) {
  PackArgs args{.layout = job.is_q ? StripLayout::kQuery : StripLayout::kKey,
                .compute = sizes_.compute,
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
  args.layout = StripLayout::kValue;
  args.source = &call_.v;
  PackStrips(args, home_ + job.run.at + sizes_.k);
}

void LayerRun::WriteRows(const TokenSource& source, StripLayout layout, const TokenRows& scattered,
                         std::byte* rows) {
  const int64_t lane = scattered.lane;
  alignas(64) float scratch[kMaxHeadDim];
  ForEachHomeRow(scattered, buffers_.orders->Of(lane), HomeOf(lane),
                 [&](int64_t token, int64_t row) {
                   std::byte* to = rows + row * sizes_.row;
                   ReadRows(source, problem_.lanes, lane, token, 1, head_dim_,
                            Integers() ? scratch : AsFloats(to));
                   if (Integers()) RoundToken(RoundingOf(layout), scratch, to);
                 });
}

void LayerRun::Gather(int32_t stage) {
  const RankStage& now = At(stage);
  if (now.gather_kv.runs.empty() && now.gather_q.runs.empty()) return;
  std::vector<const Parcel*> from(Index(it_.ranks), nullptr);
  for (const Parcel& parcel : now.receives) from[Index(parcel.peer)] = &parcel;
  std::byte* buffer = InputBuffer(stage);
  auto pack = [&](const GatheredStrips& gathered, int64_t i, const TokenSource& source,
                  StripLayout layout, int64_t rows_of_v, int64_t pitch, std::byte* to) {
    const bool is_q = layout == StripLayout::kQuery;
    const StripRun& run = gathered.runs[Index(i)];
    const int64_t begin = run.first * kStripTokens;
    std::vector<float> rows(Index(run.count * kStripTokens * head_dim_));
    ForEachGatheredRow(it_, gathered, i, buffers_.orders->Of(run.lane),
                       [&](int64_t position, int64_t token, int32_t home, int64_t row) {
                         float* to_row = rows.data() + (position - begin) * head_dim_;
                         if (home == it_.rank) {
                           ReadRows(source, problem_.lanes, run.lane, token, 1, head_dim_, to_row);
                           return;
                         }
                         const Parcel& parcel = *from[Index(home)];
                         const int64_t at =
                             is_q ? parcel.q_rows_at
                                  : parcel.kv_rows_at + rows_of_v * parcel.kv_rows * sizes_.row;
                         const std::byte* arrived = buffer + parcel.base + at + row * sizes_.row;
                         if (Integers()) return UnroundToken(RoundingOf(layout), arrived, to_row);
                         std::memcpy(to_row, arrived, Index(sizes_.row));
                       });
    auto produce = [&](int64_t, int64_t first, int64_t count, float* out) {
      std::copy_n(rows.data() + (first - begin) * head_dim_, count * head_dim_, out);
    };
    const TokenSource gathered_rows{RowProducer(produce)};
    PackStrips({.layout = layout,
                .compute = sizes_.compute,
                .source = &gathered_rows,
                .lanes = problem_.lanes,
                .lane = run.lane,
                .tokens = problem_.grid.q_tokens,
                .head_dim = head_dim_,
                .token_at_position = nullptr,
                .strips = {run.first, run.first + run.count},
                .pitch = pitch},
               to);
  };
  const int64_t strips = 2 * StripsOf(now.gather_kv) + StripsOf(now.gather_q);
  Packing(stage, strips * kStripTokens * sizes_.row, [&] {
    pool_.ParallelFor(std::ssize(now.gather_kv.runs), [&](int64_t i, int) {
      std::byte* to = buffer + now.gather_kv.runs[Index(i)].at;
      pack(now.gather_kv, i, call_.k, StripLayout::kKey, 0, sizes_.kv, to);
      pack(now.gather_kv, i, call_.v, StripLayout::kValue, 1, sizes_.kv, to + sizes_.k);
    });
    pool_.ParallelFor(std::ssize(now.gather_q.runs), [&](int64_t i, int) {
      pack(now.gather_q, i, call_.q, StripLayout::kQuery, 0, sizes_.q,
           buffer + now.gather_q.runs[Index(i)].at);
    });
  });
}

void LayerRun::PointKv(const StripRun& run, const std::byte* base) {
  const int64_t first = run.lane * kv_strips_per_lane_ + run.first;
  for (int64_t i = 0; i < run.count; ++i) {
    const std::byte* strip = base + run.at + i * sizes_.kv;
    buffers_.k[Index(first + i)] = strip;
    buffers_.v[Index(first + i)] = strip + sizes_.k;
  }
}

void LayerRun::PointQ(const StripRun& run, const std::byte* base) {
  const int64_t first = run.lane * strips_per_lane_ + run.first;
  for (int64_t i = 0; i < run.count; ++i)
    buffers_.q[Index(first + i)] = base + run.at + i * sizes_.q;
}

void LayerRun::FillInputTables(int32_t stage) {
  const RankStage& now = At(stage);
  const std::byte* buffer = InputBuffer(stage);
  for (const Parcel& parcel : now.receives) {
    for (const StripRun& run : parcel.kv) PointKv(run, buffer + parcel.base);
    for (const StripRun& run : parcel.q) PointQ(run, buffer + parcel.base);
  }
  for (const StripRun& run : now.local_kv) PointKv(run, home_);
  for (const StripRun& run : now.local_q) PointQ(run, home_);
  for (const StripRun& run : now.gather_kv.runs) PointKv(run, buffer);
  for (const StripRun& run : now.gather_q.runs) PointQ(run, buffer);
  if (stage == 0) return;
  for (const Segment& segment : now.segments) {
    for (const StripRun& run : segment.runs) PointKv(run, buffer + segment.base);
  }
}

void LayerRun::PointOutput(const TokenRows& run, float* rows, float* lse, int64_t stride) {
  const int64_t first = run.lane * strips_per_lane_ + run.first / kStripTokens;
  for (int64_t i = 0; i * kStripTokens < run.count; ++i) {
    buffers_.out[Index(first + i)] = {
        .out = rows + i * kStripTokens * stride, .lse = lse + i * kStripTokens, .stride = stride};
  }
}

void LayerRun::FillOutputTable(int32_t stage) {
  const RankStage& now = At(stage);
  std::byte* buffer = OutputBuffer(stage);
  for (const TokenRows& run : now.own_output) {
    PointOutput(run, OutRow(run.lane, run.first), LseAt(lse_, run.lane, run.first),
                problem_.lanes.heads * head_dim_);
  }
  for (const OutParcel& parcel : now.returns) {
    const OutputRows rows = RowsAt(buffer + parcel.base, parcel.rows);
    for (const TokenRows& run : parcel.tokens)
      PointOutput(run, rows.out + run.row * head_dim_, rows.lse + run.row, head_dim_);
  }
  for (const StripRun& run : now.scatter_out.runs) {
    const OutputRows rows = RowsAt(buffer + run.at, run.count * kStripTokens);
    const Range positions = PositionsOf(run, problem_.grid.q_tokens);
    PointOutput({.lane = run.lane,
                 .first = static_cast<int32_t>(positions.begin),
                 .count = static_cast<int32_t>(positions.size())},
                rows.out, rows.lse, head_dim_);
  }
}

void LayerRun::Scatter(int32_t stage) {
  const RankStage& now = At(stage);
  if (now.scatter_out.runs.empty()) return;
  std::vector<const OutParcel*> to(Index(it_.ranks), nullptr);
  for (const OutParcel& parcel : now.returns) to[Index(parcel.peer)] = &parcel;
  std::byte* buffer = OutputBuffer(stage);
  const auto scatter = [&](int64_t i, int) {
    const StripRun& run = now.scatter_out.runs[Index(i)];
    const OutputRows made = RowsAt(buffer + run.at, run.count * kStripTokens);
    ForEachGatheredRow(it_, now.scatter_out, i, buffers_.orders->Of(run.lane),
                       [&](int64_t position, int64_t token, int32_t home, int64_t row) {
                         OutputRows place;
                         if (home == it_.rank) {
                           place = {OutRow(run.lane, token), LseAt(lse_, run.lane, token)};
                         } else {
                           const OutParcel& parcel = *to[Index(home)];
                           const OutputRows rows = RowsAt(buffer + parcel.base, parcel.rows);
                           place = {rows.out + row * head_dim_, rows.lse + row};
                         }
                         const int64_t from = position - run.first * kStripTokens;
                         std::memcpy(place.out, made.out + from * head_dim_, Index(sizes_.out));
                         *place.lse = made.lse[from];
                       });
  };
  Packing(stage, StripsOf(now.scatter_out) * kStripTokens * sizes_.out,
          [&] { pool_.ParallelFor(std::ssize(now.scatter_out.runs), scatter); });
}

void LayerRun::Unpack(const OutParcel& parcel, std::byte* data) {
  const OutputRows rows = RowsAt(data, parcel.rows);
  auto take = [&](int64_t lane, int64_t token, int64_t row) {
    std::memcpy(OutRow(lane, token), rows.out + row * head_dim_, Index(sizes_.out));
    *LseAt(lse_, lane, token) = rows.lse[row];
  };
  pool_.ParallelFor(std::ssize(parcel.tokens), [&](int64_t i, int) {
    const TokenRows& run = parcel.tokens[Index(i)];
    for (int64_t t = 0; t < run.count; ++t) take(run.lane, run.first + t, run.row + t);
  });
  pool_.ParallelFor(std::ssize(parcel.scattered), [&](int64_t i, int) {
    const TokenRows& run = parcel.scattered[Index(i)];
    ForEachHomeRow(run, buffers_.orders->Of(run.lane), HomeOf(run.lane),
                   [&](int64_t token, int64_t row) { take(run.lane, token, row); });
  });
}

}  // namespace equitile
