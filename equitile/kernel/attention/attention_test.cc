#include "equitile/kernel/attention/attention.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {
namespace {

using testing::kLayouts;
using testing::Layout;
using testing::MatchesReference;
using testing::Problem;
using testing::ProblemOptions;

class AttentionTest : public testing::TargetTest {};

void ExpectRight(const ProblemOptions& options, int64_t every = 1) {
  Problem problem(options);
  testing::ExpectRight(problem, every);
}

TEST_P(AttentionTest, HeadDims) {
  for (int64_t head_dim : {8, 16, 24, 32, 40, 64, 72, 96, 128, 200, 256, 384, 512}) {
    ExpectRight({.lanes = {1, 2},
                 .grid = {.q_tokens = 65, .kv_tokens = 83, .block_tokens = 32},
                 .head_dim = head_dim});
  }
}

TEST_P(AttentionTest, BlockSizes) {
  for (int64_t block : {16, 32, 48, 64, 80, 128, 256}) {
    ExpectRight(
        {.grid = {.q_tokens = 301, .kv_tokens = 523, .block_tokens = block}, .head_dim = 24}, 3);
  }
}

TEST_P(AttentionTest, TokenCounts) {
  for (int64_t tokens : {1, 7, 16, 17, 31, 63, 64, 65, 127, 128, 129, 257, 1000}) {
    for (float density : {1.0f, 0.4f}) {
      ExpectRight({.grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = 64},
                   .density = density},
                  tokens > 200 ? 5 : 1);
    }
  }
}

TEST_P(AttentionTest, QueryAndKeyCountsThatDiffer) {
  for (const auto& [q_tokens, kv_tokens] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 509}, {509, 1}, {64, 77}, {77, 64}, {15, 129}, {161, 512}, {3, 17}}) {
    ExpectRight({.lanes = {1, 2},
                 .grid = {.q_tokens = q_tokens, .kv_tokens = kv_tokens, .block_tokens = 48},
                 .head_dim = 40,
                 .density = 1.0f},
                3);
  }
}

TEST_P(AttentionTest, BatchesAndManyHeads) {
  for (const Lanes& lanes : {Lanes{2, 1}, Lanes{2, 7}, Lanes{3, 2}, Lanes{1, 40}}) {
    ExpectRight({.lanes = lanes, .grid = {.q_tokens = 45, .kv_tokens = 61, .block_tokens = 16}});
  }
}

// Whatever the above does not try.
TEST_P(AttentionTest, RandomProblems) {
  for (uint64_t seed = 100; seed < 140; ++seed) {
    Rng rng(seed);
    auto any = [&](int64_t from, int64_t to) {
      return from + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(to - from + 1)));
    };
    ProblemOptions options = {
        .lanes = {any(1, 3), any(1, 4)},
        .grid = {.q_tokens = any(1, 90), .kv_tokens = any(1, 300), .block_tokens = 16 * any(1, 16)},
        .head_dim = 8 * any(1, any(0, 3) == 0 ? 64 : 12),
        .in = static_cast<DType>(any(0, 2)),
        .out = static_cast<DType>(any(0, 2)),
        .in_layout = kLayouts[any(0, 3)],
        .out_layout = kLayouts[any(0, 3)],
        .density = static_cast<float>(any(0, 10)) * 0.1f,
        .seed = seed};
    ExpectRight(options, 3);
  }
}

TEST_P(AttentionTest, StorageTypesAndLayouts) {
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (const DType in : kTypes) {
    for (const DType out : kTypes) {
      for (const Layout in_layout : kLayouts) {
        for (const Layout out_layout : kLayouts) {
          SCOPED_TRACE(::testing::Message()
                       << DTypeName(in) << " to " << DTypeName(out) << ", layouts "
                       << static_cast<int>(in_layout) << " and " << static_cast<int>(out_layout));
          ExpectRight({.lanes = {2, 2},
                       .grid = {.q_tokens = 21, .kv_tokens = 37, .block_tokens = 16},
                       .head_dim = 24,
                       .in = in,
                       .out = out,
                       .in_layout = in_layout,
                       .out_layout = out_layout});
        }
      }
    }
  }
}

TEST_P(AttentionTest, RowsWithoutBlocksAreZeroAndMinusInfinity) {
  for (float density : {0.0f, 0.2f}) {
    Problem problem({.lanes = {2, 3},
                     .grid = {.q_tokens = 101, .kv_tokens = 50, .block_tokens = 32},
                     .head_dim = 24,
                     .density = density});
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem));
    int64_t empty = 0;
    for (int64_t row = 0; row < problem.rows.Count(); ++row) {
      if (!problem.rows.KvBlocks(row).empty()) continue;
      ++empty;
      const auto [lane, q_block] = problem.rows.rows[static_cast<size_t>(row)];
      const Range tokens = problem.args.grid.QBlockTokens(q_block);
      for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        EXPECT_EQ(problem.Lse(lane, t), -std::numeric_limits<float>::infinity());
        for (int64_t d = 0; d < 24; ++d)
          EXPECT_EQ(problem.args.out.Load(lane / 3, t, lane % 3, d), 0.0f);
      }
    }
    EXPECT_GT(empty, 3);
  }
}

TEST_P(AttentionTest, RowsThatAreNotListedStayUntouched) {
  for (const Layout layout : kLayouts) {
    Problem problem({.lanes = {2, 3},
                     .grid = {.q_tokens = 90, .kv_tokens = 70, .block_tokens = 16},
                     .out_layout = layout});
    AttentionRows some;
    std::vector<bool> listed(static_cast<size_t>(problem.rows.Count()));
    for (int64_t row = 0; row < problem.rows.Count(); row += 1 + row % 3) {
      listed[static_cast<size_t>(row)] = true;
      const auto [lane, q_block] = problem.rows.rows[static_cast<size_t>(row)];
      some.Add(lane, q_block, problem.rows.KvBlocks(row));
    }
    const AttentionRows all = std::exchange(problem.rows, some);
    problem.Run();
    EXPECT_TRUE(MatchesReference(problem));
    EXPECT_TRUE(problem.out.OutsideUntouched());
    for (int64_t row = 0; row < all.Count(); ++row) {
      const auto [lane, q_block] = all.rows[static_cast<size_t>(row)];
      const Range tokens = problem.args.grid.QBlockTokens(q_block);
      for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        EXPECT_EQ(problem.Lse(lane, t) == Problem::kUntouchedLse,
                  !listed[static_cast<size_t>(row)]);
        for (int64_t d = 0; d < 16; ++d) {
          ASSERT_EQ(problem.out.Untouched(lane / 3, t, lane % 3, d),
                    !listed[static_cast<size_t>(row)])
              << "lane " << lane << ", token " << t;
        }
      }
    }
  }
}

TEST_P(AttentionTest, NoRowsAtAll) {
  Problem problem({});
  problem.rows = AttentionRows();
  const auto before = problem.out.Bytes();
  problem.Run();
  EXPECT_EQ(problem.out.Bytes(), before);
}

TEST_P(AttentionTest, LogSumExpIsOptional) {
  Problem problem({});
  const auto with = problem.Bits();
  problem.args.lse = nullptr;
  problem.Run();
  EXPECT_EQ(problem.out.Bytes(), with.out);
}

// Six heads, one order each, with text before and after.
class TokenOrders : public testing::TargetTest {
 protected:
  static constexpr TokenGrid kGrid = {
      .frames = 3, .height = 4, .width = 5, .text_before = 7, .text_after = 6};

  TokenOrders() {
    for (size_t lane = 0; lane < kAxisOrders.size(); ++lane) {
      maps_.push_back(TokenAtPosition(kGrid, kAxisOrders[lane]));
    }
    for (const auto& map : maps_) pointers_.push_back(map.data());
  }

  std::vector<std::vector<int32_t>> maps_;
  std::vector<const int32_t*> pointers_;
};

TEST_P(TokenOrders, AgainstTheReference) {
  for (const bool order_q : {false, true}) {
    for (const bool order_kv : {false, true}) {
      for (const Layout layout : {Layout::kHeadsTokens, Layout::kDimApart}) {
        Problem problem(
            {.lanes = {1, 6},
             .grid = {.q_tokens = kGrid.Tokens(), .kv_tokens = kGrid.Tokens(), .block_tokens = 16},
             .in_layout = layout,
             .out_layout = layout});
        if (order_q) problem.args.q_order = pointers_;
        if (order_kv) problem.args.kv_order = pointers_;
        pointers_[4] = nullptr;  // the natural order
        problem.Run();
        EXPECT_TRUE(MatchesReference(problem)) << "orders of q " << order_q << ", kv " << order_kv;
      }
    }
  }
}

// The same as gathering the tokens by hand and scattering the result.
TEST_P(TokenOrders, AreGatherAndScatter) {
  const ProblemOptions options = {
      .lanes = {1, 6},
      .grid = {.q_tokens = kGrid.Tokens(), .kv_tokens = kGrid.Tokens(), .block_tokens = 32}};
  Problem ordered(options), gathered(options);
  ordered.args.q_order = ordered.args.kv_order = pointers_;
  ordered.Run();
  for (int64_t head = 0; head < 6; ++head) {
    for (int64_t p = 0; p < kGrid.Tokens(); ++p) {
      const int32_t token = maps_[static_cast<size_t>(head)][static_cast<size_t>(p)];
      for (int64_t d = 0; d < options.head_dim; ++d) {
        gathered.q.view().Store(ordered.q.view().Load(0, token, head, d), 0, p, head, d);
        gathered.k.view().Store(ordered.k.view().Load(0, token, head, d), 0, p, head, d);
        gathered.v.view().Store(ordered.v.view().Load(0, token, head, d), 0, p, head, d);
      }
    }
  }
  gathered.Run();
  for (int64_t head = 0; head < 6; ++head) {
    for (int64_t p = 0; p < kGrid.Tokens(); ++p) {
      const int32_t token = maps_[static_cast<size_t>(head)][static_cast<size_t>(p)];
      ASSERT_EQ(ordered.Lse(head, token), gathered.Lse(head, p)) << head << " " << token;
      for (int64_t d = 0; d < options.head_dim; ++d) {
        ASSERT_EQ(ordered.out.view().Load(0, token, head, d),
                  gathered.out.view().Load(0, p, head, d))
            << "head " << head << ", token " << token << ", dim " << d;
      }
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionTest);
EQUITILE_TEST_ON_ALL_TARGETS(TokenOrders);

}  // namespace
}  // namespace equitile
