#include "equitile/sparsity/files/pattern_masks.h"

#include <gtest/gtest.h>

#include <mutex>

#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

PatternHead HeadOf(HeadMode mode, double size = 0) {
  return {.pattern = {.mode = mode, .size = size, .columns = {}},
          .density = 1,
          .error = 0,
          .predict_mass = 0.8,
          .observe_mass = std::nullopt};
}

// Per layer: skipped, a narrow band, means.
std::shared_ptr<PatternFile> SomeFile(const LayerCase& test) {
  auto file = std::make_shared<PatternFile>();
  file->grid = test.token_grid;
  file->block_tokens = test.block_tokens;
  const std::vector<PatternHead> heads = {HeadOf(HeadMode::kSkip), HeadOf(HeadMode::kDiagonal, 0.1),
                                          HeadOf(HeadMode::kMean)};
  file->ranges = {{.low = 0, .high = 1, .layers = {heads, heads}}};
  return file;
}

LaneMasks MasksOf(const LayerWorld& world, std::optional<FillUp> fill_up, int32_t ranks = 1) {
  LaneMasks masks;
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    PatternMasks source(world.Context(comm, pool), SomeFile(world.test()), fill_up);
    EXPECT_EQ(source.SkippedHeads({.step = 0, .layer = 1, .sigma = 0.5}), std::vector<int64_t>{0});
    world.Call(comm, 0, 1, nullptr, [&](const SelfAttentionCall& call) {
      LaneMasks mine = source.MaskFor(call);
      const std::lock_guard lock(mutex);
      masks = std::move(mine);
    });
  });
  return masks;
}

int64_t Kept(const LaneMasks& masks, int64_t lane) {
  int64_t kept = 0;
  for (int64_t q = 0; q < masks.blocks().QBlocks(); ++q) kept += masks.blocks().RowCount(lane, q);
  return kept;
}

// Prediction fills bands and means up, gives them its tail, and leaves skipped heads alone.
TEST(PatternMasks, SkippedHeadsStaySkippedWherePredictionFillsUp) {
  const LayerCase test;
  const LayerWorld world{test};
  const FillUp fill_up{
      .by = PredictOptions{.mass_of_head = PredictMassOf(SomeFile(test), 0.9), .guard = 0.5},
      .tail = Tail::kMean};
  const LaneMasks modes = MasksOf(world, std::nullopt);
  for (const int32_t ranks : {1, 2, 3}) {
    const LaneMasks filled = MasksOf(world, fill_up, ranks);
    for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) {
      const int64_t head = test.lanes.HeadOf(lane);
      if (head == 0) {
        EXPECT_EQ(Kept(filled, lane), 0);
        EXPECT_EQ(filled.TailOf(lane), Tail::kNone);
        continue;
      }
      EXPECT_GT(Kept(filled, lane), Kept(modes, lane)) << lane;
      EXPECT_EQ(filled.TailOf(lane), Tail::kMean) << lane;
      EXPECT_EQ(modes.TailOf(lane), head == 2 ? Tail::kMean : Tail::kNone) << lane;
    }
    EXPECT_EQ(filled, MasksOf(world, fill_up));
  }
}

FillUp ByError(double error, Tail tail = Tail::kMean) {
  ErrorOptions options;
  options.error = error;
  options.refresh = 2;
  return {.by = options, .tail = tail};
}

// Blocks are chosen within one budget, whatever modes say; skipped heads stay so.
TEST(PatternMasks, ByErrorOnlySkippedHeadsAreBound) {
  const LayerCase test;
  const LayerWorld world{test};
  const LaneMasks chosen = MasksOf(world, ByError(0.1)), less = MasksOf(world, ByError(0.4));
  for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) {
    const bool is_skipped = test.lanes.HeadOf(lane) == 0;
    EXPECT_EQ(chosen.TailOf(lane), is_skipped ? Tail::kNone : Tail::kMean);
    EXPECT_EQ(Kept(chosen, lane) == 0, is_skipped) << lane;
  }
  EXPECT_LT(less.blocks().Density(), chosen.blocks().Density());
  for (const int32_t ranks : {2, 3}) EXPECT_EQ(MasksOf(world, ByError(0.1), ranks), chosen);
  const LaneMasks all = MasksOf(world, ByError(0));
  EXPECT_EQ(all.blocks().Density(), 2.0 / 3) << "all but the skipped head";
  EXPECT_EQ(SkippedHeads(all), std::vector<int64_t>{0});
}

// Without skipped heads it is `predict`, through ranges of noise with whatever modes.
TEST(PatternMasks, ByErrorWithoutSkippedHeadsIsPredicted) {
  const LayerCase test;
  const LayerWorld world{test};
  SoloCommunicator comm;
  ThreadPool pool(1);
  auto file = SomeFile(test);
  const std::vector<PatternHead> first = {HeadOf(HeadMode::kFull), HeadOf(HeadMode::kDiagonal, 0.1),
                                          HeadOf(HeadMode::kMean)};
  const std::vector<PatternHead> then(3, HeadOf(HeadMode::kMultiDiagonal, 1));
  file->ranges = {{.low = 0.4, .high = 1, .layers = {first, first}},
                  {.low = 0, .high = 0.4, .layers = {then, then}}};
  const FillUp fill_up = ByError(0.2);
  PatternMasks pattern(world.Context(comm, pool), file, fill_up);
  ErrorMasks plain(
      world.Context(comm, pool),
      LaneMasks({.blocks = BlockMask(test.lanes, test.Grid()),
                 .token_grid = test.token_grid,
                 .orders = {},
                 .tails = std::vector<Tail>(static_cast<size_t>(test.lanes.Count()), Tail::kMean)}),
      std::get<ErrorOptions>(fill_up.by));
  for (int32_t step = 0; step < 4; ++step) {
    const LayerWorld now{test, static_cast<uint64_t>(step) + 1};
    now.Call(comm, step, 1, nullptr, [&](SelfAttentionCall call) {
      call.sigma = 1 - 0.25F * static_cast<float>(step);  // the last masks are used in both ranges
      EXPECT_EQ(pattern.MaskFor(call), plain.MaskFor(call)) << step;
    });
  }
}

TEST(PatternMasks, ByErrorTheyGoOnFromACheckpoint) {
  const LayerCase test;
  const LayerWorld world{test};
  SoloCommunicator comm;
  ThreadPool pool(1);
  PatternMasks before(world.Context(comm, pool), SomeFile(test), ByError(0.2));
  PatternMasks after(world.Context(comm, pool), SomeFile(test), ByError(0.2));
  LaneMasks made, restored;
  world.Call(comm, 0, 1, nullptr,
             [&](const SelfAttentionCall& call) { made = before.MaskFor(call); });
  after.Restore(before.State());
  EXPECT_EQ(after.State(), before.State());  // also what nobody has asked for since
  const LayerWorld other{test, 2};
  other.Call(comm, 1, 1, nullptr,
             [&](const SelfAttentionCall& call) { restored = after.MaskFor(call); });
  EXPECT_EQ(restored, made);
}

TEST(PatternMasks, WithoutATailOnlyMeansHaveOne) {
  const LayerCase test;
  const LayerWorld world{test};
  const LaneMasks filled = MasksOf(world, FillUp{.by = PredictOptions(), .tail = Tail::kNone});
  for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) {
    EXPECT_EQ(filled.TailOf(lane), test.lanes.HeadOf(lane) == 2 ? Tail::kMean : Tail::kNone);
  }
}

}  // namespace
}  // namespace equitile
