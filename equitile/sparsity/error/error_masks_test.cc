#include "equitile/sparsity/error/error_masks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

ErrorOptions SomeOptions() {
  ErrorOptions options;
  options.error = 0.2;
  options.making.orders = {TokenOrder::kFHW, TokenOrder::kHWF};
  return options;
}

LaneMasks ShapeOf(const LayerCase& test, Tail tail = Tail::kMean) {
  return LaneMasks({.blocks = BlockMask(test.lanes, test.Grid()),
                    .token_grid = test.token_grid,
                    .orders = {},
                    .tails = std::vector<Tail>(static_cast<size_t>(test.lanes.Count()), tail)});
}

// Masks of layer 1 in every step; on every rank the same.
std::vector<LaneMasks> MasksOf(const LayerWorld& world, const ErrorOptions& options, int32_t ranks,
                               Tail tail = Tail::kMean, int threads = 2) {
  std::vector<LaneMasks> all;
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(threads);
    ErrorMasks source(world.Context(comm, pool), ShapeOf(world.test(), tail), options);
    std::vector<LaneMasks> mine;
    for (int32_t step = 0; step < world.test().steps; ++step) {
      world.Call(comm, step, 1, nullptr,
                 [&](const SelfAttentionCall& call) { mine.push_back(source.MaskFor(call)); });
    }
    const std::lock_guard lock(mutex);
    if (all.empty()) all = mine;
    EXPECT_EQ(all, mine) << "rank " << comm.rank();
  });
  return all;
}

TEST(ErrorMasks, AreTheSameOnAnyRanks) {
  const LayerWorld world{LayerCase{}};
  for (const bool share : {false, true}) {
    ErrorOptions options = SomeOptions();
    options.making.share_passes = share;
    const std::vector<LaneMasks> one = MasksOf(world, options, 1);
    EXPECT_LT(one[0].blocks().Density(), 1.0);
    EXPECT_GT(one[0].blocks().Density(), 0.1);
    for (const int32_t ranks : {2, 3, 5, 8, 13})
      EXPECT_EQ(MasksOf(world, options, ranks), one) << ranks;
  }
}

// A lane for each thread, or lanes that all threads share, or first the one and then the other.
TEST(ErrorMasks, AreTheSameOnAnyThreads) {
  const LayerWorld world{LayerCase{}};
  const std::vector<LaneMasks> one = MasksOf(world, SomeOptions(), 1, Tail::kMean, 1);
  const auto lanes = static_cast<int>(world.test().lanes.Count());
  for (const int threads : {2, lanes - 1, lanes, lanes + 1, 3 * lanes}) {
    EXPECT_EQ(MasksOf(world, SomeOptions(), 1, Tail::kMean, threads), one) << threads;
    EXPECT_EQ(MasksOf(world, SomeOptions(), 2, Tail::kMean, threads), one) << threads;
  }
}

// What is left out fits into the budget, and one more block would not.
TEST(ErrorMasks, SpendTheWholeBudgetAndNoMore) {
  const LayerWorld world{LayerCase{}};
  const LayerCase& test = world.test();
  ErrorOptions options = SomeOptions();
  options.making.orders = {TokenOrder::kFHW};
  options.making.sampled_rows = 32;
  options.error =
      0.1;  // so little that no row would keep nothing: these keep one whatever it costs
  for (const Tail tail : {Tail::kNone, Tail::kMean}) {
    const BlockMask mask = MasksOf(world, options, 2, tail)[0].blocks();
    const std::vector<int32_t> at = TokenAtPosition(test.token_grid, TokenOrder::kFHW);
    ThreadPool pool(1);
    BlockJudge judge(pool);
    std::vector<int64_t> rows(static_cast<size_t>(mask.QBlocks()));
    std::iota(rows.begin(), rows.end(), 0);
    double left = 0, squares = 0, lightest = INFINITY;
    for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) {
      BlockErrors::Lane all{.keys = {.k = world.Row(1, 1, lane, 0),
                                     .v = world.Row(2, 1, lane, 0),
                                     .token_at_position = at.data(),
                                     .grid = test.Grid(),
                                     .head_dim = test.head_dim},
                            .queries = {},
                            .scale = 0.25f,
                            .tail = tail,
                            .key_step = 2};
      for (int64_t token = 0; token < test.Tokens(); ++token)
        all.queries.push_back(world.Row(0, 1, lane, token));
      BlockErrors found;
      found.Begin(all, 32);
      BlockErrors* const one[] = {&found};
      judge.Pack(one);
      judge.Judge(one, rows);
      squares += found.Squares();
      for (int64_t i = 0; i < std::ssize(found.errors()); ++i) {
        const double error = double{found.errors()[static_cast<size_t>(i)]};
        if (mask.Get(lane, i / mask.KvBlocks(), i % mask.KvBlocks()))
          lightest = std::min(lightest, error);
        else
          left += error;
      }
    }
    EXPECT_LT(mask.Density(), 0.95);
    EXPECT_LE(left, 0.01 * squares * 1.01);
    EXPECT_GT(left + lightest, 0.01 * squares * 0.99);
  }
}

// Head 0 looks at its own frame, head 1 at its own place.
TEST(ErrorMasks, EveryHeadInTheOrderThatNeedsFewestBlocks) {
  LayerCase test;
  test.lanes = {.batch = 1, .heads = 2};
  test.token_grid = {.frames = 8, .height = 4, .width = 8};
  test.head_dim = 32;
  LayerWorld world{test};
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t token = 0; token < test.Tokens(); ++token) {
      const int64_t seen = head == 0 ? token / 32 : token % 32;
      for (int64_t i = 0; i < 32; ++i) {
        const auto at = static_cast<size_t>(((2 + head) * test.Tokens() + token) * 32 + i);
        world.values(0)[at] = world.values(1)[at] = i == seen ? 7.0f : 0.0f;
      }
    }
  }
  ErrorOptions options = SomeOptions();
  options.error = 0.05;
  const LaneMasks masks = MasksOf(world, options, 1)[0];
  EXPECT_EQ(masks.orders(), (std::vector{TokenOrder::kFHW, TokenOrder::kHWF}));
  EXPECT_LT(masks.blocks().Density(), 0.3);
  // Only fhw: the second head needs many.
  options.making.orders = {TokenOrder::kFHW};
  EXPECT_GT(MasksOf(world, options, 1)[0].blocks().Density(), masks.blocks().Density());
}

TEST(ErrorMasks, AWeightIsAFactorOfTheError) {
  const LayerWorld world{LayerCase{}};
  ErrorOptions options = SomeOptions();
  const std::vector<LaneMasks> plain = MasksOf(world, options, 1);
  options.weight = [](double, int64_t) { return 1.0; };
  EXPECT_EQ(MasksOf(world, options, 1), plain);
  options.weight = [](double sigma, int64_t layer) { return sigma == 0.5 && layer == 1 ? 2 : 0.1; };
  const std::vector<LaneMasks> more = MasksOf(world, options, 1);
  EXPECT_LT(more[0].blocks().Density(), plain[0].blocks().Density());
  for (const int32_t ranks : {2, 3}) EXPECT_EQ(MasksOf(world, options, ranks), more) << ranks;
  options.weight = {};
  options.error *= 2;
  EXPECT_EQ(MasksOf(world, options, 1), more);
  options.weight = [](double, int64_t) { return 0.0; };
  EXPECT_EQ(MasksOf(world, options, 1)[0].blocks().Density(), 1);
}

TEST(ErrorMasks, NoErrorIsDense) {
  const LayerWorld world{LayerCase{}};
  ErrorOptions options = SomeOptions();
  options.error = 0;
  const LaneMasks masks = MasksOf(world, options, 2)[0];
  EXPECT_EQ(masks, LaneMasks(BlockMask::Dense(world.test().lanes, world.test().Grid())));
}

TEST(ErrorMasks, AreDenseAtFirstAndMadeAnewEverySoManySteps) {
  LayerWorld world{LayerCase{}};
  ErrorOptions options = SomeOptions();
  options.first_step = 2;
  const std::vector<LaneMasks> once = MasksOf(world, options, 1);
  EXPECT_EQ(once[1].blocks().Density(), 1.0);
  EXPECT_LT(once[2].blocks().Density(), 1.0);
  options.first_step = 0;
  options.refresh = 2;
  SoloCommunicator comm;
  ThreadPool pool(1);
  ErrorMasks source(world.Context(comm, pool), ShapeOf(world.test()), options);
  std::vector<LaneMasks> masks;
  for (int32_t step = 0; step < 4; ++step) {
    world.Call(comm, step, 1, nullptr,
               [&](const SelfAttentionCall& call) { masks.push_back(source.MaskFor(call)); });
    for (float& value : world.values(1)) value *= 1.5f;
  }
  EXPECT_EQ(masks[0], masks[1]);
  EXPECT_NE(masks[1], masks[2]);
  EXPECT_EQ(masks[2], masks[3]);
}

TEST(ErrorMasks, HeadsKeepTheOrderThatTheyHaveTaken) {
  LayerWorld world{LayerCase{}};
  ErrorOptions options = SomeOptions();
  options.refresh = 1;
  SoloCommunicator comm;
  ThreadPool pool(1);
  ErrorMasks source(world.Context(comm, pool), ShapeOf(world.test()), options);
  LaneMasks first, second;
  world.Call(comm, 0, 1, nullptr,
             [&](const SelfAttentionCall& call) { first = source.MaskFor(call); });
  LayerWorld other{LayerCase{}, 2};
  other.Call(comm, 1, 1, nullptr,
             [&](const SelfAttentionCall& call) { second = source.MaskFor(call); });
  EXPECT_EQ(second.orders(), first.orders());
  EXPECT_NE(second, first);
  // Which another layer, seen for the first time, would not have taken.
  ErrorMasks fresh(world.Context(comm, pool), ShapeOf(world.test()), options);
  other.Call(comm, 1, 1, nullptr,
             [&](const SelfAttentionCall& call) { second = fresh.MaskFor(call); });
  EXPECT_NE(second.orders(), first.orders());
}

TEST(ErrorMasks, GoOnFromACheckpointWithTheirOrders) {
  const LayerWorld world{LayerCase{}};
  SoloCommunicator comm;
  ThreadPool pool(1);
  ErrorOptions options = SomeOptions();
  options.making.orders = {TokenOrder::kHWF, TokenOrder::Tiles(2, 3, 4)};
  ErrorMasks before(world.Context(comm, pool), ShapeOf(world.test()), options);
  ErrorMasks after(world.Context(comm, pool), ShapeOf(world.test()), options);
  LaneMasks made, restored;
  world.Call(comm, 0, 1, nullptr,
             [&](const SelfAttentionCall& call) { made = before.MaskFor(call); });
  after.Restore(before.State());
  LayerWorld other{LayerCase{}, 2};
  other.Call(comm, 1, 1, nullptr,
             [&](const SelfAttentionCall& call) { restored = after.MaskFor(call); });
  EXPECT_EQ(restored, made);
  EXPECT_FALSE(made.orders().empty());
  SourceState damaged = before.State();
  damaged.begin()->second.push_back(std::byte{'!'});
  EXPECT_THROW(after.Restore(damaged), InputError);
}

TEST(ErrorMasks, RefuseWhatIsNotFinite) {
  LayerWorld world{LayerCase{}};
  world.values(1)[static_cast<size_t>(world.test().lanes.Count() * world.test().Tokens() *
                                      world.test().head_dim) +
                  5] = NAN;
  SoloCommunicator comm;
  ThreadPool pool(1);
  ErrorMasks source(world.Context(comm, pool), ShapeOf(world.test()), SomeOptions());
  world.Call(comm, 0, 1, nullptr, [&](const SelfAttentionCall& call) {
    EXPECT_THROW(source.MaskFor(call), InputError);
  });
}

}  // namespace
}  // namespace equitile
