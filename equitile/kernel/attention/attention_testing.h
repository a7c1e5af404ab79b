// Attention problems with random numbers in any layout, and the two ways in which their results are
// judged: against the double-precision reference, and bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/reference/attention_reference.h"
#include "equitile/tensor/tensor.h"

namespace equitile::testing {

// How the elements of a [batch, tokens, heads, dim] view lie in memory.
enum class Layout {
  kTokensHeads,  // as the view says
  kHeadsTokens,  // [batch, heads, tokens, dim]
  kDimApart,     // [batch, dim, tokens, heads]: the dims of a token are not neighbours
  kPadded,       // with room before, between and after the parts
};
inline constexpr Layout kLayouts[] = {Layout::kTokensHeads, Layout::kHeadsTokens, Layout::kDimApart,
                                      Layout::kPadded};

// Numbers in some layout. Storage begins as a pattern that no computation makes, so that what was
// left alone can be told.
class LaidOut {
 public:
  LaidOut(DType dtype, Layout layout, const Shape& btHd)
      : storage_(dtype, {StorageElements(layout, btHd)}), view_(Place(layout, btHd)) {
    std::memset(storage_.view().Data(), kPattern,
                static_cast<size_t>(storage_.Elements() * DTypeBytes(dtype)));
  }

  const View& view() const { return view_; }

  void Fill(uint64_t seed, uint32_t stream, float deviation) {
    const Rng rng(seed, stream);
    uint64_t i = 0;
    ForEach([&](auto... at) { view_.Store(deviation * rng.NormalAt(i++), at...); });
  }

  std::vector<std::byte> Bytes() const {
    const auto* data = static_cast<const std::byte*>(ConstView(storage_).Data());
    return {data, data + storage_.Elements() * DTypeBytes(storage_.dtype())};
  }

  // The element as it was before anybody wrote it.
  bool Untouched(int64_t b, int64_t t, int64_t h, int64_t d) const {
    const auto* at = static_cast<const unsigned char*>(view_.Address(b, t, h, d));
    return std::all_of(at, at + DTypeBytes(view_.dtype()),
                       [](unsigned char byte) { return byte == kPattern; });
  }

  // Everything that no element of the view covers.
  bool OutsideUntouched() const {
    const int64_t bytes = DTypeBytes(view_.dtype());
    std::vector<std::byte> left = Bytes();
    const auto* base = static_cast<const std::byte*>(ConstView(storage_).Data());
    ForEach([&](auto... at) {
      const auto offset = static_cast<const std::byte*>(view_.Address(at...)) - base;
      std::fill_n(left.begin() + offset, bytes, std::byte{kPattern});
    });
    return std::all_of(left.begin(), left.end(),
                       [](std::byte byte) { return byte == std::byte{kPattern}; });
  }

 private:
  static constexpr unsigned char kPattern = 0x5B;

  static int64_t StorageElements(Layout layout, const Shape& s) {
    return layout == Layout::kPadded ? s[0] * (s[1] + 2) * (s[2] + 1) * (s[3] + 5) + 7
                                     : s.Elements();
  }
  View Place(Layout layout, const Shape& s) {
    const int64_t b = s[0], t = s[1], h = s[2], d = s[3];
    const View flat = storage_;
    switch (layout) {
      case Layout::kTokensHeads:
        return flat.Reshape(s);
      case Layout::kHeadsTokens:
        return flat.Reshape({b, h, t, d}).Transpose(1, 2);
      case Layout::kDimApart:
        return View(flat.Data(), flat.dtype(), s, {d * t * h, h, 1, t * h});
      case Layout::kPadded:
        return View(flat.Address(5), flat.dtype(), s,
                    {(t + 2) * (h + 1) * (d + 5), (h + 1) * (d + 5), d + 5, 1});
    }
    return {};
  }

  template <typename Visit>
  void ForEach(const Visit& visit) const {
    const Shape& s = view_.shape();
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t t = 0; t < s[1]; ++t) {
        for (int64_t h = 0; h < s[2]; ++h) {
          for (int64_t d = 0; d < s[3]; ++d) visit(b, t, h, d);
        }
      }
    }
  }

  Tensor storage_;
  View view_;
};

struct ProblemOptions {
  Lanes lanes = {};
  BlockGrid grid = {.q_tokens = 100, .kv_tokens = 100, .block_tokens = 32};
  int64_t head_dim = 16;
  DType in = DType::kF32, out = DType::kF32;
  Layout in_layout = Layout::kTokensHeads, out_layout = Layout::kTokensHeads;
  float density = 0.6f;  // each block of each row is kept by chance; 1: all
  uint64_t seed = 1;
};

// Output and log-sum-exp, to compare bit for bit.
struct ResultBits {
  std::vector<std::byte> out;
  std::vector<uint32_t> lse;
  friend bool operator==(const ResultBits&, const ResultBits&) = default;
};

// A call with everything it refers to; tests change what they are about.
class Problem {
 public:
  explicit Problem(const ProblemOptions& o)
      : options(o),
        q(o.in, o.in_layout, {o.lanes.batch, o.grid.q_tokens, o.lanes.heads, o.head_dim}),
        k(o.in, o.in_layout, {o.lanes.batch, o.grid.kv_tokens, o.lanes.heads, o.head_dim}),
        v(o.in, o.in_layout, {o.lanes.batch, o.grid.kv_tokens, o.lanes.heads, o.head_dim}),
        out(o.out, o.out_layout, {o.lanes.batch, o.grid.q_tokens, o.lanes.heads, o.head_dim}),
        rows(RandomRows(o)),
        lse(static_cast<size_t>(o.lanes.Count() * o.grid.q_tokens), kUntouchedLse) {
    q.Fill(o.seed, 0, 1.0f);
    k.Fill(o.seed, 1, 1.0f);
    v.Fill(o.seed, 2, 1.0f);
    args = {.lanes = o.lanes,
            .grid = o.grid,
            .head_dim = o.head_dim,
            .scale = 1.0f / std::sqrt(static_cast<float>(o.head_dim)),
            .rows = &rows,
            .q = ConstView(q.view()),
            .k = ConstView(k.view()),
            .v = ConstView(v.view()),
            .q_order = {},
            .kv_order = {},
            .k_center = {},
            .bias = {},
            .tails = {},
            .out = out.view(),
            .lse = lse.data(),
            .out_strips = {},
            .poll = {}};
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void Run(int threads = 2) {
    ThreadPool pool(threads);
    Workspace workspace;
    Attention(args, pool, workspace);
  }

  // The same with a call per row.
  void RunRowByRow() {
    const AttentionRows all = rows;
    for (int64_t row = 0; row < all.Count(); ++row) {
      const auto [lane, q_block] = all.rows[static_cast<size_t>(row)];
      rows = AttentionRows();
      rows.Add(lane, q_block, all.KvBlocks(row));
      Run(1);
    }
    rows = all;
  }
  // What these have written.
  ResultBits Written() const { return BitsOf(out, lse); }

  // What `changed` gives, in a fresh output.
  ResultBits Bits(AttentionArgs changed, int threads = 2) const {
    LaidOut fresh(options.out, options.out_layout, out.view().shape());
    std::vector<float> fresh_lse(lse.size(), kUntouchedLse);
    changed.out = fresh.view();
    changed.lse = fresh_lse.data();
    ThreadPool pool(threads);
    Workspace workspace;
    Attention(changed, pool, workspace);
    return BitsOf(fresh, fresh_lse);
  }
  ResultBits Bits(int threads = 2) const { return Bits(args, threads); }

  float Lse(int64_t lane, int64_t token) const {
    return lse[static_cast<size_t>(lane * options.grid.q_tokens + token)];
  }

  static constexpr float kUntouchedLse = -12345.0f;

  ProblemOptions options;
  LaidOut q, k, v, out;
  AttentionRows rows;
  std::vector<float> lse;
  AttentionArgs args;

 private:
  static ResultBits BitsOf(const LaidOut& out, const std::vector<float>& lse) {
    ResultBits bits = {out.Bytes(), std::vector<uint32_t>(lse.size())};
    std::memcpy(bits.lse.data(), lse.data(), lse.size() * sizeof(float));
    return bits;
  }
  static AttentionRows RandomRows(const ProblemOptions& o) {
    if (o.density >= 1.0f) return AttentionRows::Dense(o.lanes, o.grid);
    AttentionRows rows;
    const Rng rng(o.seed, 3);
    uint64_t i = 0;
    for (int64_t lane = 0; lane < o.lanes.Count(); ++lane) {
      for (int64_t q_block = 0; q_block < o.grid.QBlocks(); ++q_block) {
        std::vector<int32_t> kept;
        for (int32_t block = 0; block < o.grid.KvBlocks(); ++block) {
          if (rng.UniformAt(i++) < o.density) kept.push_back(block);
        }
        rows.Add(lane, q_block, kept);
      }
    }
    return rows;
  }
};

// Of the blocks of each row those whose numbers leave `part` when divided by `parts`: for some rows
// none.
inline AttentionRows PartOf(const AttentionRows& whole, int part, int parts) {
  AttentionRows rows;
  for (int64_t row = 0; row < whole.Count(); ++row) {
    std::vector<int32_t> kept;
    for (int32_t block : whole.KvBlocks(row)) {
      if (block % parts == part) kept.push_back(block);
    }
    const auto [lane, q_block] = whole.rows[static_cast<size_t>(row)];
    rows.Add(lane, q_block, kept);
  }
  return rows;
}

// Packed strips of one of the three, as they would come from another rank.
class PackedStrips {
 public:
  PackedStrips(const AttentionArgs& args, const TokenSource& source, StripLayout layout) {
    const bool query = layout == StripLayout::kQuery;
    const int64_t tokens = query ? args.grid.q_tokens : args.grid.kv_tokens;
    const auto orders = query ? args.q_order : args.kv_order;
    const int64_t per_lane = CeilDiv(tokens, kStripTokens);
    // Every strip on its own: no two of them need to lie side by side.
    for (int64_t lane = 0; lane < args.lanes.Count(); ++lane) {
      for (int64_t strip = 0; strip < per_lane; ++strip) {
        AlignedBuffer<std::byte> buffer(StripBytes(args.head_dim, args.compute));
        PackStrips(
            {.layout = layout,
             .compute = args.compute,
             .source = &source,
             .lanes = args.lanes,
             .lane = lane,
             .tokens = tokens,
             .head_dim = args.head_dim,
             .token_at_position = orders.empty() ? nullptr : orders[static_cast<size_t>(lane)],
             .strips = {strip, strip + 1},
             .center = layout == StripLayout::kKey ? args.KCenter(lane) : nullptr},
            buffer.data());
        pointers_.push_back(buffer.data());
        buffers_.push_back(std::move(buffer));
      }
    }
    table_ = {.strips = pointers_, .strips_per_lane = per_lane, .compute = args.compute};
  }
  PackedStrips(const PackedStrips&) = delete;
  PackedStrips& operator=(const PackedStrips&) = delete;

  TokenSource Source() const { return table_; }
  void Drop(int64_t strip) {
    buffers_[static_cast<size_t>(strip)] = {};
    pointers_[static_cast<size_t>(strip)] = nullptr;
  }

 private:
  std::vector<AlignedBuffer<std::byte>> buffers_;
  std::vector<const std::byte*> pointers_;
  StripTable table_;
};

// The result of the last Run is that of the reference, within what the reference allows.
// `every`: one row in so many is looked at.
inline ::testing::AssertionResult MatchesReference(const Problem& problem, int64_t every = 1) {
  std::vector<int64_t> rows;
  for (int64_t row = problem.rows.Count() - 1; row >= 0; row -= every) rows.push_back(row);
  const AttentionError worst = CompareWithReference(problem.args, rows);
  if (worst.worst_fraction <= 1.0) return ::testing::AssertionSuccess();
  const AttentionRows::Row row = problem.rows.rows[static_cast<size_t>(worst.row)];
  const AttentionArgs& args = problem.args;
  return ::testing::AssertionFailure()
         << "worst at lane " << row.lane << ", q block " << row.q_block << ", token " << worst.token
         << (worst.dim < 0 ? std::string(", log-sum-exp") : ", dim " + std::to_string(worst.dim))
         << ": "
         << (worst.dim < 0 ? problem.Lse(row.lane, worst.token)
                           : args.out.Load(args.lanes.BatchOf(row.lane), worst.token,
                                           args.lanes.HeadOf(row.lane), worst.dim))
         << ", off by " << worst.worst_fraction << " times the tolerance of " << worst.tolerance;
}

// Runs it: the result is that of the reference, and nothing else is written.
inline void ExpectRight(Problem& problem, int64_t every = 1) {
  problem.Run();
  const ProblemOptions& options = problem.options;
  EXPECT_TRUE(MatchesReference(problem, every))
      << "head_dim " << options.head_dim << ", " << options.grid.q_tokens << " x "
      << options.grid.kv_tokens << " tokens, block " << options.grid.block_tokens << ", "
      << options.lanes.batch << " x " << options.lanes.heads << " lanes, density "
      << options.density << ", seed " << options.seed;
  EXPECT_TRUE(problem.out.OutsideUntouched());
}

inline void ExpectSame(const ResultBits& got, const ResultBits& want, const std::string& what) {
  EXPECT_TRUE(got.out == want.out) << what << ": output differs";
  EXPECT_TRUE(got.lse == want.lse) << what << ": log-sum-exp differs";
}

}  // namespace equitile::testing
