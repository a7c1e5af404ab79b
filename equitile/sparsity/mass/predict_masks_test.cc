#include "equitile/sparsity/mass/predict_masks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

LaneMasks Shape(const LayerCase& test, std::vector<TokenOrder> orders = {},
                std::vector<Tail> tails = {}) {
  return LaneMasks({.blocks = BlockMask(test.lanes, test.Grid()),
                    .token_grid = test.token_grid,
                    .orders = std::move(orders),
                    .tails = std::move(tails)});
}

// [steps] of layer 1's masks, from the given step on; the same on all ranks.
std::vector<LaneMasks> Predicted(const LayerWorld& world, const LaneMasks& shape,
                                 const PredictOptions& options, int32_t ranks, int threads = 1,
                                 int32_t steps = 1) {
  std::vector<LaneMasks> masks;
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(threads);
    PredictMasks source(world.Context(comm, pool), shape, options);
    std::vector<LaneMasks> mine;
    for (int32_t step = 0; step < steps; ++step) {
      world.Call(comm, step, 1, nullptr,
                 [&](const SelfAttentionCall& call) { mine.push_back(source.MaskFor(call)); });
    }
    const std::lock_guard lock(mutex);
    if (masks.empty()) masks = mine;
    EXPECT_EQ(masks, mine) << "rank " << comm.rank();
  });
  return masks;
}

// Predicted masses in double, from the tokens themselves.
std::vector<std::vector<double>> DirectMasses(const LayerWorld& world, int64_t lane,
                                              const std::vector<int32_t>& token_at) {
  const LayerCase& test = world.test();
  const int64_t tokens = test.Tokens(), strips = CeilDiv(tokens, int64_t{16}), dim = test.head_dim;
  auto mean = [&](size_t side, int64_t strip, int64_t i) {
    double sum = 0;
    const int64_t end = std::min(tokens, (strip + 1) * 16);
    for (int64_t p = strip * 16; p < end; ++p)
      sum += static_cast<double>(world.Row(side, 1, lane, token_at[static_cast<size_t>(p)])[i]);
    return sum / static_cast<double>(end - strip * 16);
  };
  const BlockGrid grid = test.Grid();
  std::vector<std::vector<double>> masses(static_cast<size_t>(grid.QBlocks()));
  for (int64_t block = 0; block < grid.QBlocks(); ++block) {
    std::vector<double>& row = masses[static_cast<size_t>(block)];
    row.assign(static_cast<size_t>(grid.KvBlocks()), 0.0);
    const Range rows = grid.QBlockTokens(block);
    for (int64_t a = rows.begin / 16; a < CeilDiv(rows.end, int64_t{16}); ++a) {
      for (int64_t b = 0; b < strips; ++b) {
        double score = 0;
        for (int64_t i = 0; i < dim; ++i) score += mean(0, a, i) * mean(1, b, i);
        row[static_cast<size_t>(b * 16 / grid.block_tokens)] +=
            static_cast<double>(std::min<int64_t>(16, rows.end - a * 16)) *
            static_cast<double>(std::min<int64_t>(16, tokens - b * 16)) *
            std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
    }
    const double total = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& mass : row) mass /= total;
  }
  return masses;
}

void ExpectRule(const LayerWorld& world, const LaneMasks& masks, double share) {
  const LayerCase& test = world.test();
  for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) {
    const TokenOrder order =
        masks.orders().empty() ? TokenOrder::kFHW : masks.orders()[static_cast<size_t>(lane)];
    const auto direct = DirectMasses(world, lane, TokenAtPosition(test.token_grid, order));
    for (int64_t q = 0; q < masks.blocks().QBlocks(); ++q) {
      const std::vector<double>& row = direct[static_cast<size_t>(q)];
      double held = 0, lightest = 1, heaviest_left = 0;
      for (int64_t k = 0; k < masks.blocks().KvBlocks(); ++k) {
        const double mass = row[static_cast<size_t>(k)];
        if (masks.blocks().Get(lane, q, k)) held += mass, lightest = std::min(lightest, mass);
        if (!masks.blocks().Get(lane, q, k)) heaviest_left = std::max(heaviest_left, mass);
      }
      constexpr double kRounding = 2e-5;  // of masses to 2^-24 and of means to f32
      EXPECT_GE(held, share - kRounding) << lane << " " << q;
      EXPECT_LT(held - lightest, share + kRounding) << lane << " " << q;
      EXPECT_GE(lightest, heaviest_left - kRounding) << lane << " " << q;
    }
  }
}

TEST(PredictMasks, KeepsTheFewestBlocksThatHoldTheShare) {
  const LayerWorld world{LayerCase{}};
  for (const double share : {0.3, 0.8, 0.97}) {
    PredictOptions options;
    options.rule = {.mass = share, .min = 0};
    ExpectRule(world, Predicted(world, Shape(world.test()), options, 1)[0], share);
  }
}

TEST(PredictMasks, WorksInEveryLanesOwnOrder) {
  const LayerWorld world{LayerCase{}};
  const LaneMasks shape =
      Shape(world.test(), {TokenOrder::kHWF, TokenOrder::kFHW, TokenOrder::kWFH, TokenOrder::kFHW,
                           TokenOrder::kHWF, TokenOrder::kFWH});
  PredictOptions options;
  options.rule = {.mass = 0.7, .min = 0};
  const LaneMasks one = Predicted(world, shape, options, 1)[0];
  ExpectRule(world, one, 0.7);
  for (const int32_t ranks : {2, 3, 5, 8})
    EXPECT_EQ(Predicted(world, shape, options, ranks)[0], one);
}

TEST(PredictMasks, AreTheSameOnAnyRanksAndThreads) {
  for (const LayerCase& test :
       {LayerCase{}, LayerCase{.lanes = {1, 1}, .block_tokens = 64},
        LayerCase{.lanes = {2, 2}, .token_grid = {1, 3, 5}, .block_tokens = 16}}) {
    const LayerWorld world(test);
    PredictOptions options;
    options.rule = {.mass = 0.6, .min = 0.05};
    const LaneMasks one = Predicted(world, Shape(test), options, 1)[0];
    EXPECT_EQ(Predicted(world, Shape(test), options, 1, 3)[0], one);
    for (const int32_t ranks : {2, 3, 5, 8})
      EXPECT_EQ(Predicted(world, Shape(test), options, ranks, 2)[0], one) << ranks;
  }
}

TEST(PredictMasks, MassOneIsDenseAndMinHolds) {
  const LayerWorld world{LayerCase{}};
  PredictOptions options;
  options.rule = {.mass = 1, .min = 0};
  EXPECT_EQ(Predicted(world, Shape(world.test()), options, 3)[0].blocks().Density(), 1.0);
  options.rule = {.mass = 0, .min = 0.25};
  const LaneMasks least = Predicted(world, Shape(world.test()), options, 2)[0];
  for (int64_t q = 0; q < least.blocks().QBlocks(); ++q)
    EXPECT_EQ(least.blocks().RowCount(4, q), CeilDiv(least.blocks().KvBlocks(), int64_t{4}));
}

TEST(PredictMasks, HeadsMayHaveTheirOwnShares) {
  const LayerWorld world{LayerCase{}};
  PredictOptions options;
  options.rule = {.mass = 0.5, .min = 0};
  options.mass_of_head = [](double sigma, int64_t layer, int64_t head) {
    EXPECT_EQ(sigma, 0.5);
    EXPECT_EQ(layer, 1);
    return std::array{1.0, 0.5, 0.0}[static_cast<size_t>(head)];
  };
  const LaneMasks masks = Predicted(world, Shape(world.test()), options, 2)[0];
  for (const int64_t item : {0, 1}) {
    EXPECT_EQ(masks.blocks().LaneKept(3 * item),
              masks.blocks().QBlocks() * masks.blocks().KvBlocks());
    EXPECT_EQ(masks.blocks().LaneKept(3 * item + 2), 0);
  }
}

TEST(PredictMasks, PassesMayShareTheConditionalOnes) {
  const LayerWorld world{LayerCase{}};
  PredictOptions options;
  options.rule = {.mass = 0.6, .min = 0};
  const LaneMasks own = Predicted(world, Shape(world.test()), options, 2)[0];
  options.share_passes = true;
  const LaneMasks shared = Predicted(world, Shape(world.test()), options, 2)[0];
  for (int64_t head = 0; head < 3; ++head) {
    for (int64_t q = 0; q < own.blocks().QBlocks(); ++q) {
      EXPECT_EQ(shared.blocks().KeptInRow(head, q), own.blocks().KeptInRow(head, q));
      EXPECT_EQ(shared.blocks().KeptInRow(3 + head, q), own.blocks().KeptInRow(head, q));
    }
  }
}

TEST(PredictMasks, AreKeptForSomeStepsAlsoThroughACheckpoint) {
  const LayerWorld world{LayerCase{}}, later(LayerCase{}, 99);
  PredictOptions options;
  options.rule = {.mass = 0.6, .min = 0};
  options.refresh = 2;
  ThreadPool pool(1);
  SoloCommunicator solo;
  PredictMasks source(world.Context(solo, pool), Shape(world.test()), options);
  const auto mask_of = [&](PredictMasks& from, const LayerWorld& now, int32_t step) {
    LaneMasks masks;
    now.Call(solo, step, 1, nullptr,
             [&](const SelfAttentionCall& call) { masks = from.MaskFor(call); });
    return masks;
  };
  const LaneMasks first = mask_of(source, world, 0);
  PredictMasks resumed(world.Context(solo, pool), Shape(world.test()), options);
  resumed.Restore(source.State());
  for (PredictMasks* from : {&source, &resumed}) {
    EXPECT_EQ(mask_of(*from, later, 1), first);
    EXPECT_NE(mask_of(*from, later, 2), first);
  }
}

TEST(PredictMasks, SaysWhichLayerCannotBePooled) {
  LayerWorld world{LayerCase{}};
  world.values(1).back() = NAN;  // of layer 1
  try {
    Predicted(world, Shape(world.test()), {}, 3);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("step 1, layer 1"), std::string::npos) << error.what();
  }
}

// The least self-similarity of a block's strips, in double from the tokens themselves.
double DirectSimilarity(const LayerWorld& world, size_t side, int64_t lane, const Range& positions,
                        const std::vector<int32_t>& token_at) {
  const int64_t dim = world.test().head_dim;
  double least = 1;
  for (int64_t first = positions.begin; first < positions.end; first += 16) {
    const int64_t end = std::min(first + 16, positions.end);
    std::vector<double> sum(static_cast<size_t>(dim), 0.0);
    for (int64_t p = first; p < end; ++p) {
      const float* row = world.Row(side, 1, lane, token_at[static_cast<size_t>(p)]);
      double squares = 0;
      for (int64_t i = 0; i < dim; ++i) squares += double{row[i]} * double{row[i]};
      for (int64_t i = 0; i < dim; ++i)
        sum[static_cast<size_t>(i)] += double{row[i]} / std::sqrt(squares);
    }
    const double all = std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0);
    least = std::min(least, all / static_cast<double>((end - first) * (end - first)));
  }
  return least;
}

TEST(PredictMasks, GuardKeepsBlocksThatAreUnlikeThemselves) {
  LayerWorld world{LayerCase{}};
  // Some tokens of some lanes point the same way: similarities of all sizes.
  for (const size_t side : {0, 1}) {
    std::vector<float>& values = world.values(side);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += static_cast<float>(i / 700 % 7) * (i % 16 < 8 ? 0.5f : -0.25f);
  }
  const LaneMasks shape =
      Shape(world.test(), {TokenOrder::kHWF, TokenOrder::kFHW, TokenOrder::kWFH, TokenOrder::kFHW,
                           TokenOrder::kHWF, TokenOrder::kFWH});
  constexpr double kGuard = 0.35;
  PredictOptions options;
  options.rule = {.mass = 0, .min = 0};  // what is kept, is kept by the guard
  EXPECT_EQ(Predicted(world, shape, options, 1)[0].blocks().Kept(), 0);
  options.guard = kGuard;
  const BlockMask kept = Predicted(world, shape, options, 1)[0].blocks();
  for (int64_t lane = 0; lane < kept.LaneCount(); ++lane) {
    const auto token_at =
        TokenAtPosition(world.test().token_grid, shape.orders()[static_cast<size_t>(lane)]);
    for (int64_t q = 0; q < kept.QBlocks(); ++q) {
      for (int64_t k = 0; k < kept.KvBlocks(); ++k) {
        const double of_q = DirectSimilarity(world, 0, lane, kept.grid().QBlockTokens(q), token_at);
        const double of_k =
            DirectSimilarity(world, 1, lane, kept.grid().KvBlockTokens(k), token_at);
        ASSERT_GT(std::abs(of_q - kGuard), 1e-5);  // rounding decides nothing here
        ASSERT_GT(std::abs(of_k - kGuard), 1e-5);
        EXPECT_EQ(kept.Get(lane, q, k), of_q < kGuard || of_k < kGuard)
            << lane << " " << q << " " << k;
      }
    }
  }
  EXPECT_GT(kept.Density(), 0.1);
  EXPECT_LT(kept.Density(), 0.9);
  options.rule = {.mass = 0.5, .min = 0};
  const LaneMasks one = Predicted(world, shape, options, 1)[0];
  for (const int32_t ranks : {2, 3, 5, 8})
    EXPECT_EQ(Predicted(world, shape, options, ranks, 2)[0], one) << ranks;
  EXPECT_GT(one.blocks().Kept(), kept.Kept());
}

TEST(PredictMasks, GuardTakesRowsWithoutDirectionForUnlike) {
  LayerWorld world{LayerCase{}};
  std::fill(world.values(1).begin(), world.values(1).end(), 1.0f);
  std::fill(world.values(0).begin(), world.values(0).end(), 0.0f);
  PredictOptions options;
  options.rule = {.mass = 0, .min = 0};
  options.guard = 0.5;
  EXPECT_EQ(Predicted(world, Shape(world.test()), options, 2)[0].blocks().Density(), 1.0);
  std::fill(world.values(0).begin(), world.values(0).end(), -2.0f);
  EXPECT_EQ(Predicted(world, Shape(world.test()), options, 2)[0].blocks().Kept(), 0);
}

TEST(PredictMasks, AlwaysKeepsWhatItsShapeKeeps) {
  const LayerWorld world{LayerCase{}};
  BlockMask always(world.test().lanes, world.test().Grid());
  always.Set(2, 1, 5);
  always.Set(5, 0, 6);
  PredictOptions options;
  options.rule = {.mass = 0, .min = 0};
  EXPECT_EQ(Predicted(world, LaneMasks(always), options, 2)[0].blocks(), always);
}

}  // namespace
}  // namespace equitile
