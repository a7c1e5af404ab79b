#include "apps/bench/attention_workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr Lanes kLanes = {.batch = 1, .heads = 3};

TEST(RandomRowMask, KeepsExactlyTheRoundedShareOfEveryRow) {
  for (int64_t tokens : {64, 1000, 64 * 37}) {
    const BlockGrid grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = 64};
    for (double density : {1e-9, 0.1, 0.25, 0.5, 0.99, 1.0}) {
      const BlockMask mask = RandomRowMask(kLanes, grid, density, 1);
      const auto want = std::max(1.0, std::round(density * static_cast<double>(grid.KvBlocks())));
      for (int64_t lane = 0; lane < 3; ++lane) {
        for (int64_t q = 0; q < grid.QBlocks(); ++q)
          ASSERT_EQ(static_cast<double>(mask.RowCount(lane, q)), want) << density;
      }
    }
  }
}

TEST(RandomRowMask, FollowsTheSeedAndSpreadsOut) {
  const BlockGrid grid = {.q_tokens = 64 * 50, .kv_tokens = 64 * 50, .block_tokens = 64};
  const BlockMask mask = RandomRowMask(kLanes, grid, 0.2, 1);
  EXPECT_EQ(mask, RandomRowMask(kLanes, grid, 0.2, 1));
  EXPECT_NE(mask, RandomRowMask(kLanes, grid, 0.2, 2));
  for (int64_t kv = 0; kv < 50; ++kv) {  // 150 rows, each with probability 0.2
    int64_t kept = 0;
    for (int64_t lane = 0; lane < 3; ++lane) {
      for (int64_t q = 0; q < 50; ++q) kept += mask.Get(lane, q, kv);
    }
    EXPECT_GT(kept, 5) << "block " << kv;
    EXPECT_LT(kept, 60) << "block " << kv;
  }
}

TEST(OneBlockMask, KeepsOnePerRow) {
  const BlockGrid grid = {.q_tokens = 999, .kv_tokens = 777, .block_tokens = 32};
  const BlockMask mask = OneBlockMask(kLanes, grid, 5);
  EXPECT_EQ(mask.Kept(), 3 * grid.QBlocks());
  for (int64_t q = 0; q < grid.QBlocks(); ++q) EXPECT_EQ(mask.RowCount(1, q), 1);
}

class AttentionWorkloadTest : public ::testing::Test {
 protected:
  AttentionWorkloadTest() { Attention(workload_.Args(), pool_, workspace_); }

  ThreadPool pool_{2};
  Workspace workspace_;
  const BlockGrid grid_ = {.q_tokens = 150, .kv_tokens = 150, .block_tokens = 64};
  const AttentionWorkload workload_{RandomRowMask(kLanes, grid_, 0.7, 1),
                                    {.head_dim = 24, .orders = {}, .token_grid = {}},
                                    pool_};
};

TEST_F(AttentionWorkloadTest, CountsFlopsOnKeptPairs) {
  // Two of the three blocks of 64, 64 and 22 keys, by row.
  double pairs = 0.0;
  const AttentionRows& rows = *workload_.Args().rows;
  for (int64_t row = 0; row < rows.Count(); ++row) {
    ASSERT_EQ(rows.KvBlocks(row).size(), 2u);
    pairs += static_cast<double>((rows.KvBlocks(row)[1] == 2 ? 64 + 22 : 128) *
                                 (rows.rows[static_cast<size_t>(row)].q_block == 2 ? 22 : 64));
  }
  EXPECT_EQ(workload_.Flops(), 4.0 * 24 * pairs);
}

TEST_F(AttentionWorkloadTest, ARightAnswerPasses) {
  const AttentionError error = workload_.Check(pool_);
  EXPECT_LE(error.worst_fraction, 1.0);
  EXPECT_GT(error.tolerance, 0.0);
}

TEST_F(AttentionWorkloadTest, AWrongAnswerIsRefused) {
  const View& out = workload_.Args().out;
  for (float wrong : {out.Load(0, 149, 2, 23) + 1e-3f, std::numeric_limits<float>::quiet_NaN(),
                      std::numeric_limits<float>::infinity()}) {
    out.Store(wrong, 0, 149, 2, 23);
    try {
      workload_.Check(pool_);
      ADD_FAILURE() << "accepted " << wrong;
    } catch (const InputError&) {
      ADD_FAILURE() << "it is we who are wrong";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("lane 2, token 149, dim 23"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace equitile
