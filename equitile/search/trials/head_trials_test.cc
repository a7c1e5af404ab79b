// Errors of options against attention that is computed directly, whole rows at once.
#include "equitile/search/trials/head_trials.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "equitile/kernel/rows/pooling.h"
#include "equitile/search/trials/row_sample.h"
#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

LayerCase Case() {
  LayerCase test;
  test.token_grid = {.frames = 5, .height = 6, .width = 7};  // 210 tokens: 7 blocks, one ragged
  return test;
}

TrialPlace PlaceOf(const LayerCase& test, std::vector<HeadOption> options) {
  return {.grid = test.token_grid,
          .block_tokens = test.block_tokens,
          .heads = test.lanes.heads,
          .options = std::move(options)};
}

// Different in every head and block.
std::vector<std::vector<uint64_t>> SomeMasses(const LayerCase& test) {
  std::vector<std::vector<uint64_t>> masses(static_cast<size_t>(test.lanes.heads));
  Rng rng(5);
  for (auto& head : masses) {
    for (int64_t block = 0; block < test.Grid().KvBlocks(); ++block)
      head.push_back(rng.Below(1000));
  }
  return masses;
}

LaneInputs AllLanes(const LayerWorld& world, int32_t layer) {
  const LayerCase& test = world.test();
  LaneInputs inputs{.lanes = {}, .tokens = test.Tokens(), .head_dim = test.head_dim};
  inputs.scale = 1.0f / std::sqrt(static_cast<float>(test.head_dim));
  for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) inputs.lanes.push_back(lane);
  std::vector<float>* sides[] = {&inputs.q, &inputs.k, &inputs.v};
  for (size_t side = 0; side < 3; ++side) {
    const float* first = world.Row(side, layer, 0, 0);
    sides[side]->assign(first, first + test.lanes.Count() * test.Tokens() * test.head_dim);
  }
  return inputs;
}

// [lanes][tokens][head_dim] of whole masks, in token order.
std::vector<float> Direct(const LaneInputs& inputs, const LaneMasks& masks, const TokenGrid& grid,
                          ThreadPool& pool) {
  const Lanes lanes = masks.blocks().lanes();
  const Shape shape{lanes.batch, inputs.tokens, lanes.heads, inputs.head_dim};
  std::vector<float> out(inputs.q.size()), lse(static_cast<size_t>(lanes.Count() * inputs.tokens));
  const AttentionRows rows = AttentionRows::FromMask(masks.blocks());
  std::vector<std::vector<int32_t>> orders;
  std::vector<const int32_t*> order_of_lane;
  std::vector<Tail> tails;
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    const TokenOrder order =
        masks.orders().empty() ? grid.home : masks.orders()[static_cast<size_t>(lane)];
    orders.push_back(TokenAtPosition(grid, order));
    tails.push_back(masks.TailOf(lane));
  }
  for (const auto& order : orders) order_of_lane.push_back(order.data());
  AttentionArgs args;
  args.lanes = lanes;
  args.grid = masks.blocks().grid();
  args.head_dim = inputs.head_dim;
  args.scale = inputs.scale;
  args.rows = &rows;
  args.q = ConstView(inputs.q.data(), shape);
  args.k = ConstView(inputs.k.data(), shape);
  args.v = ConstView(inputs.v.data(), shape);
  args.q_order = args.kv_order = order_of_lane;
  args.tails.lanes = tails;
  args.out = View(out.data(), shape);
  args.lse = lse.data();
  Workspace workspace;
  Attention(args, pool, workspace);
  return out;
}

double MseOf(const std::vector<float>& a, const std::vector<float>& b, int64_t lane,
             int64_t floats) {
  double sum = 0;
  for (int64_t i = lane * floats; i < (lane + 1) * floats; ++i) {
    const double d = static_cast<double>(a[static_cast<size_t>(i)]) - b[static_cast<size_t>(i)];
    sum += d * d;
  }
  return sum / static_cast<double>(floats);
}

std::vector<int64_t> AllRows(const LayerCase& test) {
  std::vector<int64_t> rows(static_cast<size_t>(test.Grid().QBlocks()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

TEST(HeadTrials, MergedPartsEqualWholeRows) {
  const LayerCase test = Case();
  const LayerWorld world(test);
  const LaneInputs inputs = AllLanes(world, 1);
  const auto masses = SomeMasses(test);
  ThreadPool pool(2);
  HeadTrials trials(PlaceOf(test, BudgetOptions()), pool);
  const std::vector<LaneTrials> got = trials.Try(inputs, masses, AllRows(test));
  const Lanes lanes = {.batch = std::ssize(inputs.lanes), .heads = 1};
  const std::vector<float> dense =
      Direct(inputs, BlockMask::Dense(lanes, test.Grid()), test.token_grid, pool);
  const int64_t floats = test.Tokens() * test.head_dim;
  const std::vector<HeadOption>& options = trials.place().options;
  for (size_t option = 0; option < options.size(); ++option) {
    if (options[option].kind != OptionKind::kMode) continue;
    std::vector<HeadPattern> heads;
    for (const auto& head : masses)
      heads.push_back(PatternOf(options[option], head, test.token_grid, test.block_tokens));
    const LaneMasks masks =
        MakePatternMasks(heads, test.lanes.batch, test.token_grid, test.block_tokens);
    LaneMasks::Parts parts{.blocks = BlockMask(lanes, test.Grid()),
                           .token_grid = test.token_grid,
                           .orders = masks.orders(),
                           .tails = masks.tails()};
    for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
      for (int64_t q = 0; q < masks.blocks().QBlocks(); ++q)
        std::ranges::copy(masks.blocks().Row(lane, q), parts.blocks.MutableRow(lane, q).begin());
    }
    const std::vector<float> want = Direct(inputs, LaneMasks(parts), test.token_grid, pool);
    for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
      const OptionError& error = got[static_cast<size_t>(lane)].options[option];
      const double mse = MseOf(want, dense, lane, floats);
      // Outputs are means of values near 1: each differs by a few roundings of f32 (1e-6), the root
      // of the mean square by no more.
      EXPECT_NEAR(std::sqrt(error.mse), std::sqrt(mse), 2e-6) << "option " << option;
      EXPECT_DOUBLE_EQ(error.density, static_cast<double>(masks.blocks().LaneKept(lane)) /
                                          static_cast<double>(masks.blocks().QBlocks() *
                                                              masks.blocks().KvBlocks()));
      EXPECT_EQ(error.variance, 0);
    }
  }
}

TEST(HeadTrials, MoreMassMeansMoreBlocksAndLessError) {
  const LayerCase test = Case();
  const LayerWorld world(test);
  ThreadPool pool(1);
  HeadTrials trials(PlaceOf(test, BudgetOptions()), pool);
  const auto got = trials.Try(AllLanes(world, 0), SomeMasses(test), AllRows(test));
  const std::vector<HeadOption>& options = trials.place().options;
  for (const LaneTrials& lane : got) {
    EXPECT_EQ(lane.options[0].mse, 0);
    EXPECT_NEAR(lane.options[1].mse, lane.mean_square, 1e-12 * lane.mean_square);  // skip
    for (size_t i = 1; i < options.size(); ++i) {
      if (options[i].kind != OptionKind::kObserve || options[i - 1].kind != options[i].kind)
        continue;
      EXPECT_GE(lane.options[i].density, lane.options[i - 1].density);
      EXPECT_LT(lane.options[i].mse, lane.options[1].mse);
    }
  }
}

// Sampled rows give the mean of those rows, and a variance that covers what they miss.
TEST(HeadTrials, SampledRowsEstimateAllRows) {
  LayerCase test = Case();
  test.token_grid = {.frames = 8, .height = 12, .width = 10};
  test.block_tokens = 16;  // 60 rows
  const LayerWorld world(test);
  const LaneInputs inputs = AllLanes(world, 0);
  const auto masses = SomeMasses(test);
  ThreadPool pool(2);
  HeadTrials trials(PlaceOf(test, PaperOptions(0.3)), pool);
  const auto exact = trials.Try(inputs, masses, AllRows(test));
  EXPECT_EQ(SampledRows(60), 15);
  EXPECT_EQ(SampledRows(5), 5);
  int64_t within = 0, all = 0;
  for (uint64_t place = 0; place < 20; ++place) {
    const std::vector<int64_t> rows = SampleRows(60, 15, 1, place);
    ASSERT_EQ(std::ssize(rows), 15);
    for (size_t i = 1; i < rows.size(); ++i) ASSERT_LT(rows[i - 1], rows[i]);
    const auto sampled = trials.Try(inputs, masses, rows);
    for (size_t lane = 0; lane < exact.size(); ++lane) {
      for (size_t option = 1; option < exact[lane].options.size(); ++option) {
        const OptionError& estimate = sampled[lane].options[option];
        const double off = std::abs(estimate.mse - exact[lane].options[option].mse);
        EXPECT_GT(estimate.variance, 0);
        within += off <= 2.15 * std::sqrt(estimate.variance) ? 1 : 0;  // t of 14 degrees, 95 %
        ++all;
      }
    }
  }
  EXPECT_GT(within, all * 9 / 10);
}

TEST(LaneGather, BringsWholeLanesToOneRankEach) {
  const LayerCase test = Case();
  const LayerWorld world(test);
  for (int32_t ranks : {1, 2, 3, 5, 8}) {
    for (int64_t round_bytes : {int64_t{1}, int64_t{1} << 30}) {
      std::vector<int> seen(static_cast<size_t>(test.lanes.Count()));
      OnRanks(ranks, [&](Communicator& comm) {
        ThreadPool pool(1);
        LaneGather gather(test.lanes, test.Tokens(), test.head_dim, round_bytes, comm, pool);
        EXPECT_EQ(gather.Rounds() > 1, round_bytes == 1 && ranks < 6);
        std::vector<float> out(
            static_cast<size_t>(test.Tokens() * test.lanes.Count() * test.head_dim));
        world.Call(comm, 0, 1, out.data(), [&](const SelfAttentionCall& call) {
          for (int64_t round = 0; round < gather.Rounds(); ++round) {
            const LaneInputs& inputs = gather.Gather(call, round);
            const std::vector<float>* sides[] = {&inputs.q, &inputs.k, &inputs.v};
            for (size_t i = 0; i < inputs.lanes.size(); ++i) {
              ++seen[static_cast<size_t>(inputs.lanes[i])];
              const int64_t floats = test.Tokens() * test.head_dim;
              for (size_t side = 0; side < 3; ++side) {
                EXPECT_TRUE(std::equal(sides[side]->begin() + static_cast<int64_t>(i) * floats,
                                       sides[side]->begin() + static_cast<int64_t>(i + 1) * floats,
                                       world.Row(side, 1, inputs.lanes[i], 0)));
              }
            }
          }
        });
      });
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace equitile
