// The result of a row depends on nothing but its inputs and the SIMD target: every other way to
// compute it must give the same bits.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::ExpectSame;
using testing::LaidOut;
using testing::Layout;
using testing::PackedStrips;
using testing::Problem;
using testing::ProblemOptions;
using testing::ResultBits;

// Sizes with ragged ends, one with more lanes than threads, one with rows longer than a chunk, one
// whose blocks hold more queries than are computed together.
const ProblemOptions kProblems[] = {
    {.lanes = {2, 3},
     .grid = {.q_tokens = 75, .kv_tokens = 101, .block_tokens = 16},
     .head_dim = 24},
    {.lanes = {1, 20}, .grid = {.q_tokens = 37, .kv_tokens = 37, .block_tokens = 32}},
    {.lanes = {1, 2},
     .grid = {.q_tokens = 130, .kv_tokens = 700, .block_tokens = 64},
     .head_dim = 64,
     .density = 0.7f},
    {.lanes = {1, 2},
     .grid = {.q_tokens = 300, .kv_tokens = 290, .block_tokens = 256},
     .head_dim = 200,
     .density = 1.0f},
    {.lanes = {2, 2},
     .grid = {.q_tokens = 61, .kv_tokens = 90, .block_tokens = 48},
     .in = DType::kBF16,
     .out = DType::kF16,
     .in_layout = Layout::kHeadsTokens,
     .out_layout = Layout::kPadded},
};

class AttentionBits : public testing::TargetTest {};

TEST_P(AttentionBits, AnyNumberOfThreads) {
  for (const ProblemOptions& options : kProblems) {
    const Problem problem(options);
    const ResultBits one = problem.Bits(1);
    for (int threads : {2, 3, 8})
      ExpectSame(problem.Bits(threads), one, std::to_string(threads) + " threads");
  }
}

TEST_P(AttentionBits, RowsOneByOne) {
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    const ResultBits want = problem.Bits();
    problem.RunRowByRow();
    ExpectSame(problem.Written(), want, "row by row");
  }
}

// Rows with equal lists are computed together: neighbours, rows with others in between, some that
// keep nothing, a ragged last one; with an order, which is looked up by query.
class EqualLists {
 public:
  EqualLists()
      : problem({.lanes = {1, 2},
                 .grid = {.q_tokens = 16 * 70 + 5, .kv_tokens = 16 * 11 + 3, .block_tokens = 16},
                 .head_dim = 24}),
        order_(static_cast<size_t>(problem.args.grid.q_tokens)) {
    const std::vector<int32_t> lists[] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {1, 4}, {}, {2, 4, 7, 11}, {2, 4, 7, 10}};
    problem.rows = AttentionRows();
    for (int64_t q_block = 0; q_block < problem.args.grid.QBlocks(); ++q_block) {
      const int64_t list = q_block < 20 ? 0 : q_block < 45 ? q_block % 4 : 3 + q_block / 3 % 2;
      problem.rows.Add(0, q_block, lists[list]);
      problem.rows.Add(1, q_block, lists[q_block % 2]);
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::rotate(order_.begin(), order_.begin() + 39, order_.end());
    orders_[1] = order_.data();
    problem.args.q_order = orders_;
  }

  ResultBits RowByRow() {
    problem.RunRowByRow();
    return problem.Written();
  }

  Problem problem;

 private:
  std::vector<int32_t> order_;
  const int32_t* orders_[2] = {};
};

// The bias too is looked up by query.
TEST_P(AttentionBits, RowsWithEqualListsAreThoseAlone) {
  EqualLists lists;
  Problem& problem = lists.problem;
  const int64_t keys = problem.args.grid.kv_tokens;
  std::vector<float> bias(static_cast<size_t>(problem.args.grid.q_tokens * keys));
  const Rng rng(12);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = rng.UniformAt(i);
  problem.args.bias = {.data = bias.data(), .q_stride = keys};

  const ResultBits want = lists.RowByRow();
  for (int threads : {1, 2, 3, 8})
    ExpectSame(problem.Bits(threads), want, std::to_string(threads) + " threads");
  const PackedStrips q(problem.args, problem.args.q, StripLayout::kQuery);
  AttentionArgs packed = problem.args;
  packed.q = q.Source();
  ExpectSame(problem.Bits(packed, 1), want, "packed queries");
}

// Scores beyond 2^24, and infinite ones, are rounded in another way than all others.
TEST_P(AttentionBits, HugeScoresDoNotReachTheNextRow) {
  EqualLists lists;
  const View q = lists.problem.q.view();
  // One query each of three rows, in both lanes; their neighbours are ordinary.
  for (const auto& [token, size] : {std::pair{35, 1e9f}, {16 * 30 + 7, -1e12f}, {16 * 55, 1e38f}}) {
    for (int64_t head : {0, 1}) {
      for (int64_t d = 0; d < 24; ++d) q.Store(size * q.Load(0, token, head, d), 0, token, head, d);
    }
  }
  const ResultBits want = lists.RowByRow();
  for (int threads : {1, 2, 3})
    ExpectSame(lists.problem.Bits(threads), want, std::to_string(threads) + " threads");
}

TEST_P(AttentionBits, RowsInAnyOrderAndGrouping) {
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    const ResultBits want = problem.Bits();
    const AttentionRows all = problem.rows;
    std::vector<int64_t> order(static_cast<size_t>(all.Count()));
    std::iota(order.begin(), order.end(), 0);
    Rng rng(11);
    for (size_t group : {2, 5, 1000}) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
      LaidOut out(options.out, options.out_layout, problem.out.view().shape());
      std::vector<float> lse(problem.lse.size(), Problem::kUntouchedLse);
      problem.args.out = out.view();
      problem.args.lse = lse.data();
      for (size_t begin = 0; begin < order.size(); begin += group) {
        problem.rows = AttentionRows();
        for (size_t i = begin; i < std::min(order.size(), begin + group); ++i) {
          const auto [lane, q_block] = all.rows[static_cast<size_t>(order[i])];
          problem.rows.Add(lane, q_block, all.KvBlocks(order[i]));
        }
        problem.Run(2);
      }
      EXPECT_TRUE(out.Bytes() == want.out) << "groups of " << group;
      EXPECT_EQ(std::memcmp(lse.data(), want.lse.data(), lse.size() * 4), 0);
    }
  }
}

TEST_P(AttentionBits, ViewsStripsAndProducers) {
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    std::vector<int32_t> q_map(static_cast<size_t>(options.grid.q_tokens)),
        kv_map(static_cast<size_t>(options.grid.kv_tokens));
    std::iota(q_map.begin(), q_map.end(), 0);
    std::iota(kv_map.begin(), kv_map.end(), 0);
    std::reverse(q_map.begin(), q_map.begin() + 20);
    std::rotate(kv_map.begin(), kv_map.begin() + 7, kv_map.end());
    std::vector<const int32_t*> q_orders(static_cast<size_t>(options.lanes.Count())),
        kv_orders = q_orders;
    q_orders.back() = q_map.data();
    kv_orders.front() = kv_map.data();
    problem.args.q_order = q_orders;
    problem.args.kv_order = kv_orders;
    const ResultBits want = problem.Bits();

    const AttentionArgs& args = problem.args;
    const PackedStrips q(args, args.q, StripLayout::kQuery),
        k(args, args.k, StripLayout::kKey), v(args, args.v, StripLayout::kKey);
    auto produce_from = [&](const LaidOut& x) {
      return [&](int64_t lane, int64_t first, int64_t count, float* rows) {
        for (int64_t t = first; t < first + count; ++t) {
          for (int64_t d = 0; d < options.head_dim; ++d)
            *rows++ = x.view().Load(options.lanes.BatchOf(lane), t, options.lanes.HeadOf(lane), d);
        }
      };
    };
    auto produce_q = produce_from(problem.q), produce_k = produce_from(problem.k),
         produce_v = produce_from(problem.v);
    const TokenSource qs[] = {args.q, q.Source(), RowProducer(produce_q)};
    const TokenSource ks[] = {args.k, k.Source(), RowProducer(produce_k)};
    const TokenSource vs[] = {args.v, v.Source(), RowProducer(produce_v)};
    for (size_t from = 1; from < 27; ++from) {
      AttentionArgs changed = args;
      changed.q = qs[from % 3];
      changed.k = ks[from / 3 % 3];
      changed.v = vs[from / 9];
      ExpectSame(problem.Bits(changed, 3), want,
                 "sources " + std::to_string(from % 3) + std::to_string(from / 3 % 3) +
                     std::to_string(from / 9));
    }
  }
}

// Only what is asked for must be there.
TEST_P(AttentionBits, StripsThatNoRowAsksForMayBeMissing) {
  Problem problem({.grid = {.q_tokens = 64, .kv_tokens = 64, .block_tokens = 32}});
  problem.rows = AttentionRows();
  problem.rows.Add(0, 1, std::vector<int32_t>{1});
  const ResultBits want = problem.Bits();
  const AttentionArgs& args = problem.args;
  PackedStrips q(args, args.q, StripLayout::kQuery), k(args, args.k, StripLayout::kKey),
      v(args, args.v, StripLayout::kKey);
  for (PackedStrips* strips : {&q, &k, &v}) {
    strips->Drop(0);
    strips->Drop(1);
  }
  AttentionArgs changed = args;
  changed.q = q.Source();
  changed.k = k.Source();
  changed.v = v.Source();
  ExpectSame(problem.Bits(changed), want, "strips");
}

TEST_P(AttentionBits, AWorkspaceThatWasUsedForOtherCalls) {
  Workspace workspace;
  ThreadPool three(3), one(1);
  for (int round = 0; round < 2; ++round) {
    for (const ProblemOptions& options : kProblems) {
      Problem problem(options);
      const ResultBits want = problem.Bits();
      Attention(problem.args, round == 0 ? three : one, workspace);
      EXPECT_TRUE(problem.out.Bytes() == want.out);
      EXPECT_EQ(std::memcmp(problem.lse.data(), want.lse.data(), problem.lse.size() * 4), 0);
      Attention(problem.args, three, workspace);
      EXPECT_TRUE(problem.out.Bytes() == want.out) << "second time";
    }
  }
  const int64_t bytes = workspace.Bytes();
  Problem small(kProblems[1]);
  Attention(small.args, three, workspace);
  EXPECT_EQ(workspace.Bytes(), bytes) << "a smaller call made the workspace grow";
}

// A lane gives the same bits alone, at another place, and beside other lanes.
TEST_P(AttentionBits, OtherLanesBesideIt) {
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    problem.Run();
    for (int64_t lane = 0; lane < options.lanes.Count(); lane += 3) {
      ProblemOptions alone_options = options;
      alone_options.lanes = {1, 2};
      alone_options.out_layout = Layout::kTokensHeads;
      Problem alone(alone_options);
      const int64_t b = options.lanes.BatchOf(lane), h = options.lanes.HeadOf(lane);
      auto copy = [&](const LaidOut& from, const LaidOut& to) {
        for (int64_t t = 0; t < from.view().Extent(1); ++t) {
          for (int64_t d = 0; d < options.head_dim; ++d)
            to.view().Store(from.view().Load(b, t, h, d), 0, t, 1, d);
        }
      };
      copy(problem.q, alone.q);
      copy(problem.k, alone.k);
      copy(problem.v, alone.v);
      alone.rows = AttentionRows();
      for (int64_t row = 0; row < problem.rows.Count(); ++row) {
        const auto [its_lane, q_block] = problem.rows.rows[static_cast<size_t>(row)];
        if (its_lane == lane) alone.rows.Add(1, q_block, problem.rows.KvBlocks(row));
      }
      alone.Run(2);
      for (int64_t t = 0; t < options.grid.q_tokens; ++t) {
        for (int64_t d = 0; d < options.head_dim; ++d) {
          ASSERT_EQ(alone.out.view().Load(0, t, 1, d), problem.out.view().Load(b, t, h, d))
              << "lane " << lane << ", token " << t << ", dim " << d;
        }
      }
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionBits);

}  // namespace
}  // namespace equitile
