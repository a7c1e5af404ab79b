// Skipped blocks that count by their means.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::ExpectSame;
using testing::kLayouts;
using testing::LaidOut;
using testing::MatchesReference;
using testing::PackedStrips;
using testing::PartOf;
using testing::Problem;
using testing::ProblemOptions;
using testing::ResultBits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A problem whose lanes have tails: all of them, or two of three.
struct TailProblem : Problem {
  explicit TailProblem(const ProblemOptions& o, bool all = true)
      : Problem(o), tails(static_cast<size_t>(o.lanes.Count()), Tail::kMean) {
    for (size_t lane = 1; !all && lane < tails.size(); lane += 3) tails[lane] = Tail::kNone;
    args.tails.lanes = tails;
  }
  std::vector<Tail> tails;
};

// The means of all blocks of all lanes with a tail, as another rank would bring them.
class GivenMeans {
 public:
  explicit GivenMeans(const AttentionArgs& args) : args_(args) {
    for (int64_t lane = 0; lane < args.lanes.Count(); ++lane) {
      buffers_.emplace_back();
      means_.emplace_back();
      if (args.tails.Has(lane)) Make(lane);
    }
  }
  GivenMeans(const GivenMeans&) = delete;
  GivenMeans& operator=(const GivenMeans&) = delete;

  std::span<const LaneMeans> means() const { return means_; }
  float* Mean(int64_t lane, int64_t block) {
    return buffers_[static_cast<size_t>(lane)].data() + block * Stride();
  }

 private:
  int64_t Stride() const { return 2 * args_.head_dim + 1; }
  void Make(int64_t lane) {
    const int64_t blocks = args_.grid.KvBlocks();
    auto& buffer = buffers_.back();
    buffer.assign(static_cast<size_t>(blocks * Stride()), kNan);
    BlockMeansArgs args = {.source = &args_.k,
                           .lanes = args_.lanes,
                           .lane = lane,
                           .grid = args_.grid,
                           .head_dim = args_.head_dim,
                           .token_at_position = args_.kv_order.empty()
                                                    ? nullptr
                                                    : args_.kv_order[static_cast<size_t>(lane)],
                           .blocks = {0, blocks},
                           .stride = Stride()};
    BlockMeans(args, buffer.data());
    args.source = &args_.v;
    BlockMeans(args, buffer.data() + args_.head_dim);
    means_.back() = {buffer.data(), buffer.data() + args_.head_dim, Stride()};
  }

  const AttentionArgs& args_;
  std::vector<std::vector<float>> buffers_;
  std::vector<LaneMeans> means_;
};

class AttentionTail : public testing::TargetTest {};

void ExpectRight(const ProblemOptions& options, int64_t every = 1, bool all = true) {
  TailProblem problem(options, all);
  testing::ExpectRight(problem, every);
}

TEST_P(AttentionTail, HeadDims) {
  for (int64_t head_dim : {8, 16, 24, 32, 40, 64, 72, 128, 200, 256, 512}) {
    ExpectRight({.lanes = {1, 2},
                 .grid = {.q_tokens = 65, .kv_tokens = 83, .block_tokens = 16},
                 .head_dim = head_dim});
  }
}

TEST_P(AttentionTail, BlockSizesAndDensities) {
  for (int64_t block : {16, 48, 64, 256}) {
    for (float density : {0.0f, 0.1f, 0.9f}) {
      ExpectRight({.grid = {.q_tokens = 301, .kv_tokens = 523, .block_tokens = block},
                   .head_dim = 24,
                   .density = density},
                  3);
    }
  }
}

TEST_P(AttentionTail, TokenCounts) {
  for (int64_t tokens : {1, 7, 16, 17, 63, 64, 65, 129, 257}) {
    ExpectRight(
        {.grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = 64}, .density = 0.4f},
        tokens > 200 ? 5 : 1);
  }
}

// More means than one chunk holds, and a ragged end of each kind.
TEST_P(AttentionTail, ManyBlocks) {
  for (int64_t kv_tokens : {16 * 128, 16 * 129, 16 * 300 + 5}) {
    for (float density : {0.0f, 0.05f}) {
      ExpectRight({.grid = {.q_tokens = 37, .kv_tokens = kv_tokens, .block_tokens = 16},
                   .head_dim = 24,
                   .density = density});
    }
  }
}

TEST_P(AttentionTail, LanesWithAndWithout) {
  ExpectRight({.lanes = {2, 4},
               .grid = {.q_tokens = 90, .kv_tokens = 130, .block_tokens = 32},
               .density = 0.3f},
              1, false);
}

TEST_P(AttentionTail, RandomProblems) {
  for (uint64_t seed = 300; seed < 330; ++seed) {
    Rng rng(seed);
    auto any = [&](int64_t from, int64_t to) {
      return from + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(to - from + 1)));
    };
    const ProblemOptions options = {
        .lanes = {any(1, 3), any(1, 4)},
        .grid = {.q_tokens = any(1, 90), .kv_tokens = any(1, 300), .block_tokens = 16 * any(1, 16)},
        .head_dim = 8 * any(1, any(0, 3) == 0 ? 64 : 12),
        .in = static_cast<DType>(any(0, 2)),
        .out = static_cast<DType>(any(0, 2)),
        .in_layout = kLayouts[any(0, 3)],
        .out_layout = kLayouts[any(0, 3)],
        .density = static_cast<float>(any(0, 10)) * 0.1f,
        .seed = seed};
    ExpectRight(options, 3, any(0, 1) == 0);
  }
}

TEST_P(AttentionTail, InATokenOrder) {
  constexpr int64_t kTokens = 203;
  TailProblem problem({.lanes = {1, 2},
                       .grid = {.q_tokens = kTokens, .kv_tokens = kTokens, .block_tokens = 32},
                       .density = 0.4f});
  std::vector<int32_t> order(kTokens);
  for (int32_t p = 0; p < kTokens; ++p) order[static_cast<size_t>(p)] = p * 8 % kTokens;
  const int32_t* const orders[] = {order.data(), nullptr};
  problem.args.q_order = problem.args.kv_order = orders;
  problem.Run();
  EXPECT_TRUE(MatchesReference(problem));
}

// Nothing is skipped: not a bit differs from a call without tails.
TEST_P(AttentionTail, OfDenseRowsIsNothing) {
  TailProblem problem({.lanes = {2, 2},
                       .grid = {.q_tokens = 75, .kv_tokens = 300, .block_tokens = 32},
                       .density = 1.0f});
  AttentionArgs plain = problem.args;
  plain.tails = {};
  ExpectSame(problem.Bits(), problem.Bits(plain), "tails of dense rows");
}

TEST_P(AttentionTail, OtherLanesKeepTheirBits) {
  TailProblem problem({.lanes = {1, 3}, .density = 0.4f}, false);
  AttentionArgs plain = problem.args;
  plain.tails = {};
  const ResultBits with = problem.Bits(), without = problem.Bits(plain);
  const auto tokens = static_cast<size_t>(problem.options.grid.q_tokens);
  EXPECT_TRUE(std::equal(with.lse.begin() + tokens, with.lse.begin() + 2 * tokens,
                         without.lse.begin() + tokens));
  EXPECT_FALSE(std::equal(with.lse.begin(), with.lse.begin() + tokens, without.lse.begin()));
}

// Where all tokens of a block are alike its mean is all there is to know of it: the result is that
// of dense attention.
TEST_P(AttentionTail, OfEqualTokensIsDenseAttention) {
  const ProblemOptions options = {.lanes = {1, 2},
                                  .grid = {.q_tokens = 70, .kv_tokens = 215, .block_tokens = 32},
                                  .head_dim = 40};
  for (float density : {0.0f, 0.5f}) {
    ProblemOptions sparse = options;
    sparse.density = density;
    TailProblem problem(sparse);
    for (const LaidOut* x : {&problem.k, &problem.v}) {
      for (int64_t t = 0; t < 215; ++t) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t d = 0; d < 40; ++d)
            x->view().Store(x->view().Load(0, t / 32 * 32, h, d), 0, t, h, d);
        }
      }
    }
    problem.Run();
    problem.rows = AttentionRows::Dense(options.lanes, options.grid);  // for the reference
    EXPECT_TRUE(MatchesReference(problem)) << density;
  }
}

const ProblemOptions kProblems[] = {
    {.lanes = {2, 3},
     .grid = {.q_tokens = 75, .kv_tokens = 101, .block_tokens = 16},
     .head_dim = 24,
     .density = 0.4f},
    {.lanes = {1, 2},
     .grid = {.q_tokens = 130, .kv_tokens = 700, .block_tokens = 64},
     .head_dim = 64,
     .density = 0.5f},
    {.grid = {.q_tokens = 300, .kv_tokens = 790, .block_tokens = 256},
     .head_dim = 200,
     .density = 0.3f},
};

TEST_P(AttentionTail, SameBitsOnAnyThreadsAndRowByRow) {
  for (const ProblemOptions& options : kProblems) {
    TailProblem problem(options, false);
    const ResultBits want = problem.Bits(1);
    for (int threads : {2, 3, 8})
      ExpectSame(problem.Bits(threads), want, std::to_string(threads) + " threads");
    problem.RunRowByRow();
    EXPECT_TRUE(problem.out.Bytes() == want.out) << "row by row";
  }
}

// Rows with equal lists walk their means together, too.
TEST_P(AttentionTail, SameBitsOfRowsWithEqualLists) {
  TailProblem problem(
      {.grid = {.q_tokens = 16 * 70 + 5, .kv_tokens = 179, .block_tokens = 16}, .head_dim = 24});
  const std::vector<int32_t> lists[] = {{1, 4}, {}, {2, 4, 7, 11}};
  AttentionRows all;
  for (int64_t q_block = 0; q_block <= 70; ++q_block) all.Add(0, q_block, lists[q_block / 9 % 3]);
  problem.rows = all;
  const ResultBits together = problem.Bits(1);
  problem.RunRowByRow();
  EXPECT_TRUE(problem.out.Bytes() == together.out);
}

TEST_P(AttentionTail, SameBitsOfAnySourceAndGivenMeans) {
  for (const ProblemOptions& options : kProblems) {
    TailProblem problem(options, false);
    std::vector<int32_t> order(static_cast<size_t>(options.grid.kv_tokens));
    std::iota(order.begin(), order.end(), 0);
    std::rotate(order.begin(), order.begin() + 7, order.end());
    std::vector<const int32_t*> orders(static_cast<size_t>(options.lanes.Count()));
    orders.front() = order.data();
    problem.args.kv_order = orders;
    const AttentionArgs& args = problem.args;
    const ResultBits want = problem.Bits();

    auto produce_from = [&](const LaidOut& x) {
      return [&](int64_t lane, int64_t first, int64_t count, float* rows) {
        for (int64_t t = first; t < first + count; ++t) {
          for (int64_t d = 0; d < options.head_dim; ++d)
            *rows++ = x.view().Load(options.lanes.BatchOf(lane), t, options.lanes.HeadOf(lane), d);
        }
      };
    };
    auto produce_k = produce_from(problem.k), produce_v = produce_from(problem.v);
    AttentionArgs produced = args;
    produced.k = RowProducer(produce_k);
    produced.v = RowProducer(produce_v);
    ExpectSame(problem.Bits(produced, 3), want, "producers");

    const PackedStrips k(args, args.k, StripLayout::kKey),
        v(args, args.v, StripLayout::kKey);
    const GivenMeans means(args);
    AttentionArgs packed = args;
    packed.tails.means = means.means();
    ExpectSame(problem.Bits(packed, 3), want, "views and given means");
    packed.k = k.Source();
    packed.v = v.Source();
    ExpectSame(problem.Bits(packed, 3), want, "strips and given means");
  }
}

// The means of blocks that every row keeps may be missing.
TEST_P(AttentionTail, MeansOfKeptBlocksAreNotRead) {
  TailProblem problem({.grid = {.q_tokens = 64, .kv_tokens = 200, .block_tokens = 32}});
  problem.rows = AttentionRows();
  problem.rows.Add(0, 0, std::vector<int32_t>{1, 3});
  problem.rows.Add(0, 1, std::vector<int32_t>{1, 6});
  const ResultBits want = problem.Bits();
  GivenMeans means(problem.args);
  std::fill_n(means.Mean(0, 1), 2 * 16, kNan);
  AttentionArgs given = problem.args;
  given.tails.means = means.means();
  ExpectSame(problem.Bits(given), want, "a mean that is missing");
}

// NaN in a key or a value reaches every query of a lane with a tail, and no other lane.
TEST_P(AttentionTail, NanReachesWhoSkipsTheBlock) {
  for (const bool in_key : {true, false}) {
    TailProblem problem({.lanes = {1, 3},
                         .grid = {.q_tokens = 90, .kv_tokens = 150, .block_tokens = 32},
                         .density = 0.5f},
                        false);  // lane 1 has no tail
    for (int64_t head : {1, 2})
      (in_key ? problem.k : problem.v).view().Store(kNan, 0, 149, head, 6);
    problem.Run();
    for (int64_t row = 0; row < problem.rows.Count(); ++row) {
      const auto [lane, q_block] = problem.rows.rows[static_cast<size_t>(row)];
      const auto kept = problem.rows.KvBlocks(row);
      const bool reached = lane == 2 || (lane == 1 && std::count(kept.begin(), kept.end(), 4) > 0);
      const Range tokens = problem.args.grid.QBlockTokens(q_block);
      for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        for (int64_t d = 0; d < 16; ++d) {
          ASSERT_EQ(std::isnan(problem.out.view().Load(0, t, lane, d)),
                    reached && (in_key || d == 6))
              << "lane " << lane << ", token " << t << ", dim " << d;
        }
      }
    }
  }
}

TEST_P(AttentionTail, LargeScores) {
  for (float size : {30.0f, 1e4f}) {
    TailProblem problem({.lanes = {1, 2},
                         .grid = {.q_tokens = 64, .kv_tokens = 300, .block_tokens = 32},
                         .head_dim = 64,
                         .density = 0.4f});
    problem.q.Fill(9, 0, size);
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem)) << size;
  }
}

// A row that comes in two parts brings its tail once: with the mask of whole rows beside the first.
TEST_P(AttentionTail, OfRowsInParts) {
  TailProblem problem({.lanes = {1, 2},
                       .grid = {.q_tokens = 75, .kv_tokens = 203, .block_tokens = 16},
                       .head_dim = 24,
                       .density = 0.4f});
  const AttentionRows whole = problem.rows;
  BlockMask mask(problem.options.lanes, problem.options.grid);
  for (int64_t row = 0; row < whole.Count(); ++row) {
    const auto [lane, q_block] = whole.rows[static_cast<size_t>(row)];
    for (int32_t block : whole.KvBlocks(row)) mask.Set(lane, q_block, block);
  }
  std::vector<float> out(2 * 75 * 24), lse(problem.lse.size(), -kInfinity);
  for (int part : {0, 1}) {
    problem.rows = PartOf(whole, part, 2);
    problem.args.tails = {};
    if (part == 0) problem.args.tails = {.lanes = problem.tails, .means = {}, .kept = &mask};
    problem.Run();
    for (int64_t lane = 0; lane < 2; ++lane) {
      std::vector<float> partial;
      for (int64_t t = 0; t < 75; ++t) {
        for (int64_t d = 0; d < 24; ++d) partial.push_back(problem.out.view().Load(0, t, lane, d));
      }
      MergePartial(out.data() + lane * 75 * 24, lse.data() + lane * 75, partial.data(),
                   problem.lse.data() + lane * 75, 75, 24);
    }
  }
  problem.rows = whole;
  problem.args.tails = {.lanes = problem.tails, .means = {}, .kept = nullptr};
  problem.lse = lse;
  problem.args.lse = problem.lse.data();
  for (int64_t lane = 0; lane < 2; ++lane) {
    for (int64_t t = 0; t < 75; ++t) {
      for (int64_t d = 0; d < 24; ++d)
        problem.out.view().Store(out[static_cast<size_t>((lane * 75 + t) * 24 + d)], 0, t, lane, d);
    }
  }
  EXPECT_TRUE(MatchesReference(problem));
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionTail);

TEST(AttentionTailRefuses, WhatDoesNotFit) {
  TailProblem problem({.lanes = {1, 3}});
  const AttentionArgs good = problem.args;
  auto expect = [&](const AttentionArgs& args, const std::string& words) {
    problem.args = args;
    try {
      problem.Run();
      ADD_FAILURE() << "accepted: " << words;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  AttentionArgs bad = good;
  bad.tails.lanes = good.tails.lanes.first(2);
  expect(bad, "2 tails");
  const GivenMeans means(good);
  bad = good;
  bad.tails.means = means.means().first(1);
  expect(bad, "1 means for 3 lanes");
  bad = good;
  const std::vector<float> bias(100, 0.0f);
  bad.bias = {.data = bias.data()};
  expect(bad, "bias and tails");
  bad = good;
  const PackedStrips k(good, good.k, StripLayout::kKey);
  bad.k = k.Source();
  expect(bad, "give their means");
  bad = good;
  const BlockMask other({1, 2}, good.grid);
  bad.tails.kept = &other;
  expect(bad, "another grid");
}

}  // namespace
}  // namespace equitile
